"""How each classic game of pettingzoo is shown and its moves are named, and a good move where no search finds one.

The package gives boards as planes of zeros and ones, and moves as numbers. Here a board is the text that people of the game
would write: chess by its letters with moves as in e2e4, go by the coordinates of its own protocol, hands of cards by suit
and rank. A game that is not in `BOARDS` has no such text, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SYMBOLS = ".XO"
COLUMNS = "ABCDEFGHJKLMNOPQRSTUVWXYZ"  # of go, which leaves out the I


class Board(NamedTuple):
    """A game for two. `agent` is the player to whom it is shown, or whose move it is."""

    rules: str
    show: Callable[[Any, str], str]
    names: Callable[[Any, str, Sequence[int]], list[str]]  # of moves, in their order
    turns: int = 25  # most turns of an episode
    most: float = 1.0  # what a game can win or lose
    begins: bool = False  # whether the agent has the first move always; otherwise the seed decides
    move: Callable[[Any, str], int] | None = None  # a good one; None where a search for a win is short enough
    answer: Callable[[Any, Sequence[int]], list[int]] | None = None  # the opponent's moves to draw from, if not all


def planes(env: Any, agent: str) -> Any:
    """The board of an observation whose last axis is (own pieces, the opponent's): 0 free, 1 own, 2 the opponent's."""
    seen = env.observe(agent)["observation"]
    return seen[..., 0] + 2 * seen[..., 1]


def legal_moves(env: Any, agent: str) -> list[int]:
    return [place for place, is_legal in enumerate(env.observe(agent)["action_mask"]) if is_legal]


def rows(cells: Any) -> str:
    return "\n".join(" ".join(SYMBOLS[int(cell)] for cell in row) for row in cells)


def numbers(env: Any, agent: str, legal: Sequence[int]) -> list[str]:
    return [str(place) for place in legal]


# Chess


def chess_board(env: Any, agent: str) -> str:
    side = "white, the capitals" if agent == env.possible_agents[0] else "black, the small letters"
    lines = [f"{8 - row} {line}" for row, line in enumerate(str(env.board).splitlines())]
    last = f" The last move was {env.board.peek().uci()}." if env.board.move_stack else ""
    is_own_turn = env.board.turn == (agent == env.possible_agents[0])
    check = " You are in check." if is_own_turn and env.board.is_check() else ""
    return "\n".join([f"You are {side}.{last}{check}", *lines, "  a b c d e f g h"])


def chess_names(env: Any, agent: str, legal: Sequence[int]) -> list[str]:
    from pettingzoo.classic.chess import chess_utils

    side = env.possible_agents.index(agent)
    return [chess_utils.action_to_move(env.board, place, side).uci() for place in legal]


def chess_move(env: Any, agent: str) -> int:
    """Mate where there is one. Otherwise what wins most before the best capture that answers it, and leaves few answers."""
    legal = legal_moves(env, agent)
    moves = chess_names(env, agent, legal)
    return max(zip(legal, moves, strict=True), key=lambda each: chess_value(env.board, each[1]))[0]


WORTH = (0, 1, 3, 3, 5, 9, 0)  # no piece, pawn, knight, bishop, rook, queen, king: python-chess's order


def chess_value(board: Any, uci: str) -> float:
    """Of a move, in pawns; 1000 for mate, -100 for a draw."""
    move = board.parse_uci(uci)
    is_pawn = board.piece_type_at(move.from_square) == 1
    gain = WORTH[board.piece_type_at(move.to_square) or 0] + WORTH[move.promotion or 0]
    board.push(move)
    answers = list(board.legal_moves)
    if not answers:
        value = 1000.0 if board.is_check() else -100.0
    elif board.can_claim_draw() or board.is_insufficient_material():
        value = -100.0
    else:
        loss = max(WORTH[board.piece_type_at(answer.to_square) or 0] for answer in answers)
        king = board.king(board.turn)
        flights = sum(answer.from_square == king for answer in answers)
        edge = abs(2 * (king % 8) - 7) + abs(2 * (king // 8) - 7)
        value = gain - loss - len(answers) / 20 - flights / 8 + edge / 40 + is_pawn / 20
    board.pop()
    return value


# Go


def go_board(env: Any, agent: str) -> str:
    size = env._N
    own = 1 if agent == env.possible_agents[0] else -1
    last = env._go.recent[-1].move if env._go.recent else None
    news = f" The last move was {go_name(last, size)}." if env._go.recent else ""
    lines = [
        f"{size - row:2d} " + " ".join(SYMBOLS[int(cell * own)] for cell in cells)
        for row, cells in enumerate(env._go.board)
    ]
    return "\n".join([f"You are X.{news}", *lines, "   " + " ".join(COLUMNS[:size])])


def go_name(place: tuple[int, int] | None, size: int) -> str:
    return "pass" if place is None else f"{COLUMNS[place[1]]}{size - place[0]}"


def go_names(env: Any, agent: str, legal: Sequence[int]) -> list[str]:
    size = env._N
    return [go_name(None if place == size * size else divmod(place, size), size) for place in legal]


def go_answer(env: Any, legal: Sequence[int]) -> list[int]:
    """A pass after a pass, which ends the game."""
    is_passed = env._go.recent and env._go.recent[-1].move is None
    return [place for place in legal if place == env._N**2 or not is_passed]


def go_move(env: Any, agent: str) -> int:
    """A pass when the area wins. Otherwise what leads to the largest area, the most captures and the middle."""
    from pettingzoo.classic.go import go_base

    position, size, own = env._go, env._N, 1 if agent == env.possible_agents[0] else -1
    if own * position.score() > 0 and position.recent:
        return int(size * size)

    def value(place: int) -> float:
        at = divmod(place, size)
        after = position.play_move(at)
        captured = own * (after.board.sum() - position.board.sum()) - 1
        return float(own * after.score() + captured - sum(abs(2 * each - size + 1) for each in at) / 100)

    legal = (place for place in legal_moves(env, agent) if place != size * size)
    open_places = [place for place in legal if go_base.is_eyeish(position.board, divmod(place, size)) != own]
    return max(open_places, key=value) if open_places else int(size * size)


# Cards, by rlcard

CARDS = {
    "hand": "Your hand",
    "public_card": "Open card",
    "public_cards": "Open cards",
    "all_chips": "Chips of each player",
}


def cards(env: Any, agent: str) -> str:
    place = env.possible_agents.index(agent)
    seen = env.env.get_state(place)["raw_obs"]
    lines = [f"You are player {place}."]
    for key, heading in CARDS.items():
        if key in seen:
            value = seen[key] if isinstance(seen[key], list) else [seen[key]]
            lines.append(f"{heading}: {', '.join(str(each) for each in value if each is not None) or 'none'}")
    return "\n".join(lines)


def card_names(env: Any, agent: str, legal: Sequence[int]) -> list[str]:
    if isinstance(env.env.actions, list):
        return [str(env.env.actions[place]) for place in legal]
    return [
        env.env.actions(place).name.lower().replace("_", " ").replace("check call", "check or call") for place in legal
    ]


POKER = "You are paid the chips that you win. A card is its suit (S, H, D, C) and its rank. Call act with an action."
BOARDS = {
    "tictactoe": Board(
        "Tic-tac-toe: three in a row win. You are X. Call act with the number of an empty cell, 0 to 8: column by column "
        "from the left, each from the top.",
        lambda env, agent: rows(planes(env, agent).T),
        numbers,
    ),
    "connect_four": Board(
        "Connect four: four in a row, in any direction, win. You are X. Call act with the number of a column, 0 to 6; a "
        "piece falls to the lowest free cell.",
        lambda env, agent: rows(planes(env, agent)),
        numbers,
    ),
    "chess": Board(
        "Chess. Call act with a move, the cell from which and the cell to which, as in e2e4, and with the piece that a pawn "
        "becomes, as in e7e8q.",
        chess_board,
        chess_names,
        turns=60,
        move=chess_move,
    ),
    "go": Board(
        "Go: surround more cells than the opponent, who has some in advance (komi, 7.5 by default) because you begin. X are "
        "your stones, O the opponent's. Call act with a cell, as in C3, or with pass, after which the opponent passes, too, "
        "and the cells are counted.",
        go_board,
        go_names,
        turns=60,
        begins=True,
        move=go_move,
        answer=go_answer,
    ),
    "leduc_holdem": Board(
        f"Leduc hold'em: a pair with the open card wins, then the higher rank. {POKER}", cards, card_names, most=6.5
    ),
    "texas_holdem": Board(f"Limit Texas hold'em for two. {POKER}", cards, card_names, most=24.0),
    "texas_holdem_no_limit": Board(f"No-limit Texas hold'em for two. {POKER}", cards, card_names, most=100.0),
}
