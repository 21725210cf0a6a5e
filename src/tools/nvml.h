/* nvml.h: what an NVIDIA device says about itself while it works: energy, clocks, power.  The library comes with the driver and
 * is looked for when it is wanted: without it there are no figures, and that is no error. */
#ifndef PENSTOCK_TOOLS_NVML_H
#define PENSTOCK_TOOLS_NVML_H

#include <stdbool.h>

struct nvml; /* opaque */

/* The device whose UUID ("GPU-…") is in DESCRIPTION, as a backend describes itself.  NULL: no library, no such device. */
struct nvml *nvml_open(const char *description);
void         nvml_close(struct nvml *nvml); /* NULL is fine */

/* Joules since the driver was loaded; false when the device does not count. */
bool nvml_energy(const struct nvml *nvml, double *ret);
/* MHz of the multiprocessors and of the memory, and watts, now; 0 for what it does not say. */
void nvml_clocks(const struct nvml *nvml, unsigned *ret_sm, unsigned *ret_memory, double *ret_watts);

#endif
