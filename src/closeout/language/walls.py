"""Phrases of web pages that hold no content: captchas, bot walls, logins, errors. In English and Chinese."""

from __future__ import annotations

import re

__all__ = ["WALLS"]

_CAPTCHA = (
    r"captcha|verify (?:that )?you are (?:a )?human|are you a (?:ro)?bot|not a robot|unusual traffic"
    r"|验证码|人机验证|安全验证|访问验证|滑动验证"
)
_BOT_WALL = (
    r"checking your browser|just a moment\.\.\.|attention required!|cloudflare ray id|ddos protection by"
    r"|access denied|request blocked|pardon our interruption|访问被拒绝|请求被拦截"
)
_JAVASCRIPT = (
    r"(?:enable|activate|turn on|requires?|need) javascript|javascript (?:is|must be|to be)"
    r" (?:disabled|enabled|required)|(?:启用|开启|打开) ?javascript"
)
_LOGIN = (
    r"(?:log|sign) ?in to (?:continue|view|see|read|access)|please (?:log|sign) ?in|login required"
    r"|create an account to (?:continue|view|read)|subscribe to (?:continue|read)"
    r"|请先?登录|登录后(?:查看|可见|继续)|登录查看"
)
_HTTP_ERROR = (
    r"\A\W*(?:error )?(?:40[0-9]|410|429|451|50[0-9])\b|\b(?:404|403|410) (?:not found|forbidden|gone)"
    r"|\b(?:502 bad gateway|503 service unavailable|504 gateway time-?out|500 internal server error)"
    r"|page (?:not found|does not exist|cannot be found)|页面不存在|找不到(?:该|此)?页面"
)
WALLS = {
    "it asks for a captcha": re.compile(_CAPTCHA, re.IGNORECASE),
    "it is a bot wall": re.compile(_BOT_WALL, re.IGNORECASE),
    "it needs JavaScript": re.compile(_JAVASCRIPT, re.IGNORECASE),
    "it is a login wall": re.compile(_LOGIN, re.IGNORECASE),
    "it is an HTTP error page": re.compile(_HTTP_ERROR, re.IGNORECASE),
}
