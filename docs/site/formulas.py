"""Formulas of losses, which are Python expressions, as LaTeX."""

from __future__ import annotations

import ast

NAMES = {"margin": r"\Delta", "alpha": r"\alpha", "beta": r"\beta", "prior": r"\pi", "peer": r"\tilde y"}
NAMES |= {name: rf"\mathrm{{{name}}}" for name in ("NCE", "MAE", "AUL")}


def latex(formula: str) -> str | None:
    """The formula as LaTeX, or None if it is words."""
    try:
        return _latex(ast.parse(formula, mode="eval").body)
    except (SyntaxError, KeyError):
        return None


def _latex(node: ast.expr, inside: int = 0) -> str:
    """LaTeX of a node, in brackets where it binds less than `inside`: 1 for a sum, 2 a product, 3 a power's base."""
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.Name(name):
            return NAMES.get(name, name)
        case ast.Subscript(value, index):
            return f"{_latex(value)}_{{{_latex(index)}}}"
        case ast.UnaryOp(ast.USub(), operand):
            return _bracketed(f"-{_latex(operand, 2)}", inside > 1)
        case ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.Div(), right):
            return _bracketed(rf"-\frac{{{_latex(left)}}}{{{_latex(right)}}}", inside > 1)
        case ast.BinOp(left, ast.Div(), right):
            return rf"\frac{{{_latex(left)}}}{{{_latex(right)}}}"
        case ast.BinOp(left, ast.Pow(), right):
            return f"{_latex(left, 3)}^{{{_latex(right)}}}"
        case ast.BinOp(left, ast.Mult(), right):
            return _bracketed(rf"{_latex(left, 2)}\,{_latex(right, 2)}", inside > 2)
        case ast.BinOp(left, (ast.Add() | ast.Sub()) as operator, right):
            sign = "+" if isinstance(operator, ast.Add) else "-"
            return _bracketed(f"{_latex(left, 1)} {sign} {_latex(right, 2)}", inside > 1)
        case ast.Call(ast.Name("sum"), [ast.GeneratorExp(body, [loop])]):
            return _bracketed(rf"{_range(loop)} {_latex(body, 2)}", inside > 2)
        case ast.Call(ast.Name(("log" | "exp") as name), [argument]):
            return rf"\{name}\left({_latex(argument)}\right)"
        case ast.Call(ast.Name(name), [argument]):
            return rf"{name}({_latex(argument)})"
    raise KeyError(ast.dump(node))


def _range(loop: ast.comprehension) -> str:
    match loop.iter:
        case ast.Call(ast.Name("range"), [ast.Name()]):
            return rf"\sum_{{{_latex(loop.target)}}}"
        case ast.Call(ast.Name("range"), [first, ast.BinOp(last, ast.Add(), ast.Constant(1))]):
            return rf"\sum_{{{_latex(loop.target)}={_latex(first)}}}^{{{_latex(last)}}}"
    raise KeyError(ast.dump(loop.iter))


def _bracketed(text: str, needed: bool) -> str:
    return rf"\left({text}\right)" if needed else text
