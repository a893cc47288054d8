"""Triton's interpreter without what takes most of its time."""

import dataclasses

from triton.runtime import interpreter


def shorten_interpretation() -> None:
    """Leave out the overflow check, which a GPU does not have, and patch Triton's language once in a launch.

    The interpreter patches the language again for each call of a function in a kernel.
    """
    builder = interpreter.interpreter_builder
    if hasattr(builder.options, 'sanitize_overflow'):  # not in Triton 3.0, of torch 2.4
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if not hasattr(interpreter, '_LangPatchScope'):
        return
    patch_language, patched = interpreter._patch_lang, set()

    def patch_once(function):
        if function.__module__ in patched:
            return None  # a call within a launch, which ignores the scope
        scope = patch_language(function)
        if not patched:
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        patched.add(function.__module__)
        return scope

    interpreter._patch_lang = patch_once
