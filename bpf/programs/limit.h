/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Limits of bandwidth: what a policy's traffic, or that of each of its pods, may be in one
 * direction on this node. A bucket is a time in the future, which each packet puts off by as
 * long as its bytes take at the rate (the generic cell rate algorithm). A packet that finds
 * it further away than the burst is dropped. Of several segments that the kernel handles as
 * one packet, headers count once.
 *
 * Where the devices by which packets leave have the queueing discipline fq, some such packets
 * from pods depart later instead: when the bucket is no further away than the burst. They are
 * as few as fq has room for: what it drops has been counted here, and the rate would be lost.
 * The kernel keeps a departure time of CLOCK_MONOTONIC on the ways that these packets go from
 * here: bpf_redirect and bpf_redirect_neigh call skb_clear_tstamp, which leaves it (5.18 and
 * later), VXLAN puts its headers around the same skb, and skb_scrub_packet, which it calls,
 * clears no time within a network namespace. A device without fq sends at once: the rate is
 * kept all the same. */

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

/* Beside enum direction: whether packets may wait at a device, and whether this one may not. */
#define LIMIT_PACED (1 << 1)
#define LIMIT_NO_WAIT (1 << 2)

/* Returns how far away a bucket may be that takes one more packet. */
static __always_inline __u64 limit_room(__u32 bytes, __u64 rate, __u32 how)
{
	__u64 wait;

	if (!(how & LIMIT_PACED))
		return LIMIT_BURST;
	wait = LIMIT_QUEUE * SECOND * (bytes < LIMIT_PACKET ? LIMIT_PACKET : bytes) / rate;
	return LIMIT_BURST + (wait < LIMIT_WAIT ? wait : LIMIT_WAIT);
}

/* Reports whether a bucket is full until later than a time. All CPUs raise it to the present
 * before they add to it, so what has been added is never lost. On several CPUs at once each may
 * find room for one packet more: these count too, and the rate is kept. */
static __always_inline bool is_full(struct bucket_value *b, __u64 now, __u64 latest)
{
	__u64 time = *(volatile __u64 *)&b->time;

	if (time < now)
		__sync_val_compare_and_swap(&b->time, time, now);
	return time > latest;
}

/* Returns the time until which the bucket was full before. */
static __always_inline __u64 add_to(struct bucket_value *b, __u32 bytes, __u64 rate)
{
	return __sync_fetch_and_add(&b->time, bytes * SECOND / rate);
}

/* Has a packet wait for a time, unless the pod itself has it wait longer. */
static __always_inline void depart_at(struct __sk_buff *ctx, __u64 time)
{
	if (ctx->tstamp_type != BPF_SKB_TSTAMP_DELIVERY_MONO || ctx->tstamp < time)
		bpf_skb_set_tstamp(ctx, time, BPF_SKB_TSTAMP_DELIVERY_MONO);
}

/* Reports whether a packet of a translation, with a counter and since a time in seconds, is
 * more than the limits of its policy allow. If it is not, it counts. how is the direction with
 * flags. */
SUBPROGRAM int exceeds_limit(struct __sk_buff *ctx, __u32 counter, __u32 began,
			     const struct address *pod, __u32 how)
{
	__u64 rate, pod_rate, now, all_until = 0, own_until = 0;
	struct bucket_value *all = NULL, *own = NULL;
	const struct traffic_owner *owner;
	const struct traffic_count *count;
	const struct limit_value *limit;
	struct bucket_key key = {};

	if (!pod)
		return 0;
	owner = bpf_map_lookup_elem(&sluice_trafown, &counter);
	count = bpf_map_lookup_elem(&sluice_trafhits, &counter);
	if (!owner || !count || began <= count->since)
		return 0;
	key.policy = owner->policy;
	key.direction = how & ~(LIMIT_PACED | LIMIT_NO_WAIT);
	limit = bpf_map_lookup_elem(&sluice_limits, &key.policy);
	if (!limit)
		return 0;
	rate = limit->rate;
	pod_rate = limit->pod_rate;
	now = bpf_ktime_get_ns();
	if (rate) {
		all = find_bucket(&key, now);
		if (all && is_full(all, now, now + limit_room(ctx->len, rate, how)))
			return 1;
	}
	if (pod_rate) {
		key.pod = *pod;
		own = find_bucket(&key, now);
		if (own && is_full(own, now, now + limit_room(ctx->len, pod_rate, how)))
			return 1;
	}
	if (all)
		all_until = add_to(all, ctx->len, rate);
	if (own)
		own_until = add_to(own, ctx->len, pod_rate);
	if (all_until < own_until)
		all_until = own_until;
	if (how & LIMIT_PACED && !(how & LIMIT_NO_WAIT) && all_until > now + LIMIT_BURST)
		depart_at(ctx, all_until - LIMIT_BURST);
	return 0;
}

/* Returns 0 if a packet of a translation is within the limits of its policy, or why it is
 * dropped, negative. Traffic without a counter has no limit. how is the direction, with
 * LIMIT_NO_WAIT if the packet must not wait. */
static __always_inline int within_limit(struct __sk_buff *ctx, const struct config_value *cfg,
					__u32 counter, __u32 began, const struct address *pod,
					__u32 how)
{
	if (!(cfg->flags & CONFIG_LIMITS) || !counter)
		return 0;
	if (cfg->flags & CONFIG_PACED && (how & ~LIMIT_NO_WAIT) == DIRECTION_EGRESS)
		how |= LIMIT_PACED;
	return exceeds_limit(ctx, counter, began, pod, how) ? -REASON_BANDWIDTH : 0;
}
