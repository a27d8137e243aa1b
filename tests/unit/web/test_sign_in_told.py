"""Who signs in, who leaves and who tries is written down; no token is."""

from tests.support.web_desk import Role, page


async def test_sign_in_sign_out_and_wrong_tokens_are_told():
    async with page() as opened:
        await opened.client.post("/sign-in", data={"token": "farm_wrong"})
        csrf = await opened.sign_in("ann", Role.USER)
        await opened.client.post("/sign-out", data={"csrf": csrf})
        assert opened.desk.told == [
            ("web page from 127.0.0.1", "auth.sign_in", "wrong_token"),
            ("web token ann from 127.0.0.1", "auth.sign_in", "ok"),
            ("web token ann from 127.0.0.1", "auth.sign_out", "ok"),
        ]
