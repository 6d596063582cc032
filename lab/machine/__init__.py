"""The machine tier: hosts that are QEMU machines with a kernel and a boot loader of their own.

look says what a class of machine is, image and frozen make its disk and its memory once, qemu and
qmp run it, supervisor keeps one host powered on. lab.fleet has the verbs, for both tiers.
"""
