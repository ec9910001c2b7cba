"""Triton's interpreter, faster."""

import types

import triton.runtime.interpreter as interpreter


def patch_language_once():
    """Has the interpreter patch Triton's language once for each module of kernels, and leave it so.

    Otherwise it does so whenever one function calls another, which takes longer than what is called.
    """
    given, known = interpreter._patch_lang, {}

    def patch(function):
        names = function.__globals__
        if id(names) not in known:
            known[id(names)] = names  # kept, so that no other module gets its number
            given(function)
        return types.SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch
