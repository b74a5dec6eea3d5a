/* The threads of a process that share the work of a kernel. */
#ifndef RINGPOST_POOL_H
#define RINGPOST_POOL_H

/* Computes items begin .. end - 1; `worker` numbers the thread, from 0, for what each has of its own. */
typedef void task(void *context, int begin, int end, int worker);

/* Runs all `count` items, `grain` at a time, on the caller and the others; returns when all are done. Which thread computes
 * an item changes nothing of it. Not to be called by two threads at once, nor from a task. */
void pool_run(task *run, void *context, int count, int grain);

/* How many threads there are, the caller included: what `worker` stays below. */
int pool_size(void);

#endif
