from lab.cli import lab

lab(prog_name="lab")
