/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At a pod's device: packets whose address is not that of a pod which is known there. */

#pragma once

#include "egress.h"
#include "skb.h"

/* Reports whether a packet is of a pod that may be at this device without being known
 * there yet. */
static __always_inline bool unplaced(const struct packet *p, const struct pod_value *pod,
				     const struct address *addr, __u32 slot)
{
	return (!pod || !pod->ifindex) && of_local_pods(&p->flow, addr, slot);
}

/* Reports whether what such a pod sends is held: a policy could concern it. */
static __noinline int held_at_source(const struct packet *p, const struct config_value *cfg,
				     __u32 slot)
{
	return cfg->flags & CONFIG_NETWORK_POLICIES ||
	       (covered(&p->flow) && !destination_flags(&p->flow, slot));
}

/* The same for what it gets. */
static __always_inline bool held_at_destination(const struct __sk_buff *ctx, const struct packet *p,
						const struct config_value *cfg)
{
	return cfg->flags & CONFIG_NETWORK_POLICIES &&
	       !(of_this_host(ctx, p) && cfg->flags & CONFIG_ALLOW_LOCALHOST);
}
