"""An answer with everything in it, for looking at."""

ENGLISH = """\
Recursion is when a function **calls itself** on a smaller problem, until the problem is so
small that its answer is known.

```python
def factorial(n: int) -> int:
    if n <= 1:  # the smallest part
        return 1
    return n * factorial(n - 1)

print(factorial(5))  # 120
```

Two things make it work:

1. A **base case** that ends it: `n <= 1`
2. A step that comes *closer* to it with each call

| Call | Result |
|:--|--:|
| `factorial(1)` | 1 |
| `factorial(5)` | 120 |
""".replace("is so\nsmall", "is so small")

CHINESE = """\
**递归**就是函数用更小的输入调用自己，直到问题小到可以直接得出答案。

```python
def factorial(n: int) -> int:
    if n <= 1:  # 最小的情况
        return 1
    return n * factorial(n - 1)
```

要点有两个：

1. 有一个**终止条件**：`n <= 1`
2. 每次调用都*更接近*终止条件
"""

WIDE = (
    "```sh\ncurl -N http://127.0.0.1:8000/chat "
    + "-H 'Content-Type: application/json' " * 6
    + "\n```\n\n"
    + "| "
    + " | ".join(f"a column {n}" for n in range(12))
    + " |\n|"
    + "--|" * 12
    + "\n| "
    + " | ".join(["some_long_value"] * 12)
    + " |\n\n"
    + "https://example.org/"
    + "a-long-way/" * 20
    + "\n\n"
    + "W" * 300
    + "\n\n- `"
    + "x" * 200
    + "`\n"
)
