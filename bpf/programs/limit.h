/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Limits of bandwidth: what a policy's traffic, or that of each of its pods, may be in one
 * direction on this node. A bucket is a time in the future, which each packet puts off by as
 * long as its bytes take at the rate (the generic cell rate algorithm). A packet that finds
 * it further away than the burst is dropped. Of several segments that the kernel handles as
 * one packet, headers count once. */

#pragma once

#include "ct.h"
#include "traffic.h"

/* Returns a bucket, which is made if there is none; NULL if there is no memory for it. */
static __always_inline struct bucket_value *find_bucket(const struct bucket_key *key, __u64 now)
{
	struct bucket_value new = {.time = now};
	struct bucket_value *b = bpf_map_lookup_elem(&sluice_buckets, key);

	if (b)
		return b;
	bpf_map_update_elem(&sluice_buckets, key, &new, BPF_NOEXIST);
	return bpf_map_lookup_elem(&sluice_buckets, key);
}

/* Reports whether there is no room in a bucket. All CPUs raise it to the present before they
 * add to it, so what has been added is never lost. On several CPUs at once each may find room
 * for one packet more: these count too, and the rate is kept. */
static __always_inline bool is_full(struct bucket_value *b, __u64 now)
{
	__u64 time = *(volatile __u64 *)&b->time;

	if (time < now)
		__sync_val_compare_and_swap(&b->time, time, now);
	return time > now + LIMIT_BURST;
}

static __always_inline void add_to(struct bucket_value *b, __u32 bytes, __u64 rate)
{
	__sync_fetch_and_add(&b->time, bytes * SECOND / rate);
}

/* Reports whether a packet of a translation, with a counter and since a time in seconds, is
 * more than the limits of its policy allow. If it is not, it counts. */
SUBPROGRAM int exceeds_limit(__u32 counter, __u32 began, const struct address *pod,
			     __u32 direction, __u32 bytes)
{
	struct bucket_value *all = NULL, *own = NULL;
	const struct traffic_owner *owner;
	const struct traffic_count *count;
	const struct limit_value *limit;
	struct bucket_key key = {};
	__u64 rate, pod_rate, now;

	if (!pod)
		return 0;
	owner = bpf_map_lookup_elem(&sluice_trafown, &counter);
	count = bpf_map_lookup_elem(&sluice_trafhits, &counter);
	if (!owner || !count || began <= count->since)
		return 0;
	key.policy = owner->policy;
	key.direction = direction;
	limit = bpf_map_lookup_elem(&sluice_limits, &key.policy);
	if (!limit)
		return 0;
	rate = limit->rate;
	pod_rate = limit->pod_rate;
	now = bpf_ktime_get_ns();
	if (rate) {
		all = find_bucket(&key, now);
		if (all && is_full(all, now))
			return 1;
	}
	if (pod_rate) {
		key.pod = *pod;
		own = find_bucket(&key, now);
		if (own && is_full(own, now))
			return 1;
	}
	if (all)
		add_to(all, bytes, rate);
	if (own)
		add_to(own, bytes, pod_rate);
	return 0;
}

/* Returns 0 if a packet of a translation is within the limits of its policy, or why it is
 * dropped, negative. Traffic without a counter has no limit. */
static __always_inline int within_limit(struct __sk_buff *ctx, const struct config_value *cfg,
					__u32 counter, __u32 began, const struct address *pod,
					__u32 direction)
{
	if (!(cfg->flags & CONFIG_LIMITS) || !counter)
		return 0;
	return exceeds_limit(counter, began, pod, direction, ctx->len) ? -REASON_BANDWIDTH : 0;
}
