"""Answers that a page must survive: markup that would run, and Markdown at its edges."""

_FENCE = "```"

MARKUP = {
    "script": "Hi <script>alert(1)</script> there",
    "script over lines": "<script>\nalert(1)\n</script>\n\nafter",
    "module": '<script type="module">import("data:text/javascript,alert(1)")</script>',
    "img onerror": '<img src=x onerror="alert(1)">',
    "img unquoted": "<img/src=x/onerror=alert(1)//",
    "svg onload": "<svg/onload=alert(1)><animate onbegin=alert(1) attributeName=x dur=1s>",
    "svg use": '<svg><use href="data:image/svg+xml,<svg id=x onload=alert(1)>#x"></use></svg>',
    "math": "<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--><img src=1 onerror=alert(1)>'>",
    "iframe": '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "object": '<object data="javascript:alert(1)"></object><embed src="javascript:alert(1)">',
    "meta refresh": '<meta http-equiv="refresh" content="0;url=javascript:alert(1)">',
    "base": '<base href="https://evil.example/">',
    "style": "<style>*{display:none}</style><link rel=stylesheet href=https://evil.example/x.css>",
    "form": '<form action="https://evil.example/"><input name=key autofocus onfocus=alert(1)>',
    "details": "<details open ontoggle=alert(1)>",
    "template": '<template><img src=x onerror="alert(1)"></template>',
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x onerror=alert(1)&#62;",
    "comment": "<!-- <img src=x onerror=alert(1)> -->\n--!><img src=x onerror=alert(1)>",
    "closing tags": "</div></article></main></body></html><script>alert(1)</script>",
    "in code": "`<script>alert(1)</script>`\n\n"
    f"{_FENCE}html\n<img src=x onerror=alert(1)>\n{_FENCE}",
    "in a fence's language": f'{_FENCE}"><img src=x onerror=alert(1)>\ncode\n{_FENCE}',
    "in a table": "| a | b |\n|---|---|\n"
    "| <img src=x onerror=alert(1)> | <script>alert(1)</script> |",
    "in a heading": "# <img src=x onerror=alert(1)>\n\n<h1 onclick=alert(1)>x</h1>\n===",
    "in a list": "- <svg onload=alert(1)>\n  1. <img src=x onerror=alert(1)>",
    "id that shadows": '<a id="log"></a><img name="ask"><form id="spoken"><input name="children">',
}

LINKS = {
    "javascript": "[x](javascript:alert(1))",
    "in capitals": "[x](JaVaScRiPt:alert(1))",
    "with entities": "[x](&#x6A;avascript&colon;alert(1)) [y](javascript&#58;alert(1))",
    "with a tab": "[x](java\tscript:alert(1)) [y](<java\tscript:alert(1)>)",
    "with a line break": "[x](java\nscript:alert(1)) [y](<\x01javascript:alert(1)>)",
    "percent": "[x](javascript%3Aalert(1)) [y](%6Aavascript:alert(1))",
    "escaped": "[x](javascript\\:alert\\(1\\))",
    "angle brackets": "<javascript:alert(1)> <vbscript:msgbox(1)>",
    "reference": "[x][1] [1]\n\n[1]: javascript:alert(1) 'title'",
    "data": "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "vbscript, file, blob": "[x](vbscript:msgbox(1)) [y](file:///etc/passwd) [z](blob:null/1)",
    "relative": "[x](/chat) [y](//evil.example/) [z](#log) [w](http:chat) [v](?q) [u]()",
    "image": "![x](https://evil.example/x.png) ![y](data:image/svg+xml,<svg onload=alert(1)>)",
    "image in a link": "[![x](https://evil.example/x.png)](javascript:alert(1))",
    "quotes": '[x](https://ok.example/"onmouseover="alert(1)) [y](https://ok.example/ "a\\"b")',
    "title": "[x](https://ok.example/ '\"><img src=x onerror=alert(1)>')",
    "bare": "javascript:alert(1) ftp://x.example www.example.com notes.md https://ok.example/",
}

EDGES = {
    "fences in fences": f"````md\n{_FENCE}js\nlet a = `x`;\n{_FENCE}\n````\n\nafter",
    "an unfinished fence": f"before\n\n{_FENCE}python\nprint('x')\n\n\nmore",
    "tilde and tick": f"~~~\n{_FENCE}\n~~~\n{_FENCE}\n~~~\n",
    "a fence in a list": f"1. one\n\n   {_FENCE}\n   code\n   {_FENCE}\n\n2. two\n\nend",
    "a fence in a quote": f"> {_FENCE}\n> code\nlazy\n\nend",
    "indented code": "text\n\n    code\n\n    more code\n\ntext",
    "setext": "one\n-\ntwo\n===\n\n- a\n-\n- c\n",
    "a rule or a heading": "a\n\n---\nb\n---\n\n* * *\n",
    "lists that change": "- a\n- b\n\n- loose\n\n* other\n1. x\n2. y\n\n\n   z\n",
    "deep": "> " * 60 + "deep\n\n" + "".join("  " * n + "- x\n" for n in range(60)),
    "emphasis": "**bold *both** odd* __x__ _y_ ***z*** **unfinished *and\n\nnext** para*",
    "ticks": "`` ` `` ` `` ``` a ``` unfinished `code\n\nnext",
    "brackets": "[" * 300 + "]" * 300 + "(" * 300,
    "stars": "*a **b " * 300,
    "a definition at the end": "See [the docs] and [x][y].\n\n1. [y]\n\n[the docs]: https://ok.example/\n"
    "[y]: https://ok.example/y",
    "a table that begins late": "a | b\nc | d\n--|:-:\n1 | 2\n\nnot | a table\n\n| x |\n|---|\n",
    "hard breaks": "one  \ntwo\\\nthree\nfour\r\nfive\r\rsix",
    "odd characters": "a\0b \u202eabc\u202c \ufeff 👩\u200d🚀 e\u0301 \u2028 x\u00a0y",
    "right to left": "مرحبا *بالعالم* 123\n\n- واحد\n- two\n\n| א | ב |\n|---|---|\n| 1 | 2 |",
    "chinese": "你好，**世界**！\n\n1. 第一\n2. 第二\n\n> 引用\n",
    "a huge table": "| n | "
    + " | ".join(f"c{n}" for n in range(30))
    + " |\n|"
    + "---|" * 31
    + "\n"
    + "".join(f"| {n} |" + " some text |" * 30 + "\n" for n in range(120)),
    "a long word": "x" * 5000 + "\n\n" + f"{_FENCE}\n{'y' * 5000}\n{_FENCE}\n",
}

ALL = MARKUP | LINKS | EDGES
