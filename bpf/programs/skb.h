/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the kernel knows of a packet, beside its bytes. */

#pragma once

#include "packet.h"

struct sk_buff {
	__u32 mark;
	__u32 len;
	unsigned long _nfct; /* connection of the host's tracking, and what the packet is in it */
	__u16 csum_start; /* offsets from the start of the buffer, as mac_header */
	__u16 csum_offset; /* from csum_start */
	__u16 mac_header;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

#define CHECKSUM_PARTIAL 3

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* Returns where in a frame a device writes a checksum when the frame leaves the host, which is
 * after all programs have seen it; 0 if it writes none. The sender says where. */
static __always_inline __u32 written_later(struct __sk_buff *ctx)
{
	const struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	if (BPF_CORE_READ_BITFIELD(skb, ip_summed) != CHECKSUM_PARTIAL)
		return 0;
	return (__u32)skb->csum_start - skb->mac_header + skb->csum_offset;
}

/* Reports whether a packet to a device is this host's own: it came in by none. IPv6 fragments that
 * the host makes of what it forwards do not tell by which device that came, but have no socket.
 * Copies that a bridge makes for its ports have none either. */
static __always_inline bool of_this_host(const struct __sk_buff *ctx, const struct packet *p)
{
	return !ctx->ingress_ifindex && (!p->fragment || ctx->sk);
}
