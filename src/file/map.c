/* map.c: owns nothing but the mapping itself; knows no format.
 *
 * The size is read once, when the file is opened, and every reader checks its offsets against it.  If someone truncates
 * the file while it is mapped, touching the lost pages is SIGBUS, as with any mapped file: replace a model by rename(2),
 * never in place.
 *
 * The file stays open beside its map: who copies much of it reads with fewer page faults than through the map.  A process
 * has 1,024 descriptors as a rule, so only low ones are kept.
 */
#include "file/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT_MAX = 512 };

enum status map_open(const char *path, size_t max, struct map *ret, struct error *error)
{
	static const unsigned char nothing[1];
	struct stat                info;
	void                      *bytes;
	int                        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO must not hang us */

	if (fd < 0)
		return error_set(error, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%.160s: cannot open: %s", path, strerror(errno));
	if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
		close(fd);
		return error_set(error, STATUS_INVALID, "%.160s: not a regular file", path);
	}
	if ((uintmax_t)info.st_size > max) {
		close(fd);
		return error_set(error, STATUS_LIMIT, "%.160s: %jd bytes, the limit is %zu", path, (intmax_t)info.st_size, max);
	}
	if (info.st_size == 0) { /* mmap refuses it; the reader has better words */
		close(fd);
		*ret = (struct map){ nothing, 0, -1 };
		return STATUS_OK;
	}
	bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (bytes == MAP_FAILED) {
		enum status status = error_set(error, STATUS_IO, "%.160s: mmap of %jd bytes: %s", path, (intmax_t)info.st_size,
		    strerror(errno));

		close(fd);
		return status;
	}
	if (fd >= KEPT_MAX) {
		close(fd);
		fd = -1;
	}
	*ret = (struct map){ bytes, (size_t)info.st_size, fd };
	return STATUS_OK;
}

void map_close(struct map *map)
{
	if (!map)
		return;
	if (map->size) {
		munmap((void *)map->bytes, map->size);
		if (map->fd >= 0)
			close(map->fd);
	}
	*map = (struct map){ NULL, 0, -1 };
}

void map_release(const void *bytes, size_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)bytes + page - 1) / page * page;
	uintptr_t end = ((uintptr_t)bytes + size) / page * page;

	if (first < end)
		madvise((void *)first, end - first, MADV_DONTNEED); /* a wish */
}
