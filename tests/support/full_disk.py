"""A disk that is full when a test says so."""

from farm.store.writer import StoreWriteError


class FullDisk:
    """In front of a store's writer: it refuses writes while `full`, and counts them."""

    def __init__(self, store):
        self._writer, store.database.writer = store.database.writer, self
        self.full, self.refused = False, 0

    async def write(self, *arguments, **fields):
        if self.full:
            self.refused += 1
            raise StoreWriteError("the disk is full")
        return await self._writer.write(*arguments, **fields)

    def __getattr__(self, name):
        return getattr(self._writer, name)
