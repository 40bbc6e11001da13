/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At a pod's device: what is not between its addresses and others. ARP and neighbor
 * discovery, packets to many, and packets that are not addressed to the pod. Packets
 * between the pod's own addresses and others never get here. */

#pragma once

#include "hold.h"
#include "policy.h"

/* Messages that policies say nothing of are no longer than they need to be: none is a way
 * to send data. A frame may be padded to the smallest one of Ethernet. */
#define ARP_FRAME_MAX 60
#define NEIGHBOUR_MESSAGE_MAX 40 /* with target, link-layer address and nonce */
#define GROUP_MESSAGE_MAX 512	 /* MLD and IGMP */

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_size;
	__u8 protocol_size;
	__be16 operation;
	__u8 sender_mac[6];
	__be32 sender;
	__u8 target_mac[6];
	__be32 target;
} __attribute__((packed, aligned(2)));

/* Returns the pod that a device leads to, NULL if it is not known yet. */
static __noinline const struct pod_value *pod_at(__u32 ifindex, __u32 slot)
{
	const struct device_value *device = bpf_map_lookup_elem(&sluice_devices, &ifindex);
	const struct pod_value *pod;
	struct address addr;

	if (!device)
		return NULL;
	addr = device->addr;
	pod = local_pod(&addr, slot);
	return pod && pod->ifindex == ifindex ? pod : NULL;
}

#define ETHERNET_DESTINATION 0
#define ETHERNET_SOURCE ETH_ALEN

/* Reports whether an address in the Ethernet header is not the pod's, as far as that is known. */
static __always_inline bool other_mac(struct __sk_buff *ctx, const struct pod_value *pod, __u32 at)
{
	const __u16 *is = (void *)(long)ctx->data + at, *want = (const __u16 *)pod->mac;

	if ((const void *)(is + 3) > (void *)(long)ctx->data_end)
		return true;
	return (is[0] != want[0] || is[1] != want[1] || is[2] != want[2]) &&
	       (want[0] | want[1] | want[2]) != 0;
}

/* Reports whether a frame is to more than one device. */
static __always_inline bool is_group_frame(struct __sk_buff *ctx)
{
	const __u8 *destination = (void *)(long)ctx->data;

	return (const void *)(destination + 1) <= (void *)(long)ctx->data_end && *destination & 1;
}

/* Reports whether a link-local address is made of a MAC address, but not of this one. */
static __always_inline bool of_other_mac(const struct address *a, const __u8 *mac)
{
	if (a->bytes[11] != 0xff || a->bytes[12] != 0xfe ||
	    !(mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]))
		return false;
	return a->bytes[8] != (mac[0] ^ 2) || a->bytes[9] != mac[1] || a->bytes[10] != mac[2] ||
	       a->bytes[13] != mac[3] || a->bytes[14] != mac[4] || a->bytes[15] != mac[5];
}

/* Reports whether a pod may say that it has an address: one of its own, or one that may be
 * its own, as no device is known for it. Its link-local addresses are not known: it has none
 * that is this host's, or made of another MAC address. here is the pod at the device, if it
 * is known. */
static __noinline int may_have(const struct address *a, __u32 family, const struct pod_value *here,
			       __u32 ifindex, __u32 slot)
{
	const struct pod_value *pod = local_pod(a, slot);
	struct tuple t = {.family = family, .daddr = *a};

	if (pod && pod->ifindex)
		return pod->ifindex == ifindex;
	if (pod)
		return !here || here->subject == pod->subject;
	if (family == FAMILY_IPV6 && link_local_address(a, FAMILY_IPV6))
		return !(here && of_other_mac(a, here->mac)) &&
		       !(destination_flags(&t, slot) & IPCACHE_HOST);
	return !here && of_local_pods(&t, a, slot);
}

/* Reports whether an address is one on a pod's link, as far as this node knows: its own, or
 * that of a pod here. */
static __noinline int on_link(const struct address *a, __u32 slot)
{
	struct tuple t = {.family = FAMILY_IPV6};

	if (link_local_address(a, FAMILY_IPV6) || local_pod(a, slot))
		return true;
	t.daddr = *a;
	return (destination_flags(&t, slot) & IPCACHE_HOST) != 0;
}

/* Reports whether a packet to a group goes no farther than the link. */
static __always_inline bool link_scope_group(const struct address *a)
{
	return a->bytes[0] == 0xff && (a->bytes[1] & 0xf) <= 2;
}

/* Reports whether it is the group in which the owner of an address is asked for. */
static __always_inline bool solicits(const struct address *group, const struct address *target)
{
	return group->words[0] == bpf_htonl(0xff020000) && !group->words[1] &&
	       group->words[2] == bpf_htonl(1) &&
	       group->words[3] == (target->words[3] | bpf_htonl(0xff000000));
}

static __noinline __u32 check_arp(struct __sk_buff *ctx, const struct pod_value *here, __u32 slot)
{
	struct address sender;
	struct arp arp;

	if (ctx->len > ARP_FRAME_MAX || bpf_skb_load_bytes(ctx, ETH_HLEN, &arp, sizeof(arp)) ||
	    arp.hardware != bpf_htons(1) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_size != ETH_ALEN || arp.protocol_size != 4)
		return REASON_MALFORMED;
	/* Without a sender it asks whether another device has an address that it is about to use. */
	sender = mapped(arp.sender ? arp.sender : arp.target);
	return may_have(&sender, FAMILY_IPV4, here, ctx->ifindex, slot) ? 0 : REASON_UNKNOWN_SOURCE;
}

/* Checks a message of neighbor discovery that a pod sends. Its source and target say where
 * neighbors find an address. It is never to a destination that is not on the link. */
static __noinline __u32 check_neighbours(struct __sk_buff *ctx, const struct packet *p,
					 const struct pod_value *here, bool strict, __u32 slot)
{
	const struct address *to = &p->flow.daddr;
	struct address has = p->flow.saddr, target;

	/* Pods are no routers. */
	if (p->icmp_type == ICMP6_ROUTER_ADVERTISEMENT || p->icmp_type == ICMP6_REDIRECT)
		return REASON_UNKNOWN_SOURCE;
	if (p->l4 != ETH_HLEN + sizeof(struct ipv6hdr) || ctx->len > p->l4 + NEIGHBOUR_MESSAGE_MAX)
		return REASON_MALFORMED;
	if (p->icmp_type == ICMP6_ROUTER_SOLICITATION) {
		if (!link_scope_group(to) && !link_local_address(to, FAMILY_IPV6))
			return REASON_UNKNOWN_DESTINATION;
		if (no_address(&has))
			return 0;
	} else {
		if (bpf_skb_load_bytes(ctx, p->l4 + ICMP_HEADER, &target, sizeof(target)))
			return REASON_MALFORMED;
		if (p->icmp_type == ICMP6_NEIGHBOUR_ADVERTISEMENT) {
			if (!link_scope_group(to) && !on_link(to, slot))
				return REASON_UNKNOWN_DESTINATION;
			if (strict && !may_have(&target, FAMILY_IPV6, here, ctx->ifindex, slot))
				return REASON_UNKNOWN_SOURCE;
		} else if (!solicits(to, &target) && (!same_address(to, &target) || !on_link(to, slot))) {
			return REASON_UNKNOWN_DESTINATION;
		}
		if (no_address(&has)) /* it looks whether another device has the address */
			has = target;
	}
	return !strict || may_have(&has, FAMILY_IPV6, here, ctx->ifindex, slot) ? 0 : REASON_UNKNOWN_SOURCE;
}

/* Checks what a pod sends that policies say nothing of: ARP, neighbor discovery, membership in
 * groups, and what is not IP. Returns 0, or why it is dropped. */
static __noinline __u32 check_link(struct __sk_buff *ctx, const struct packet *p,
				   const struct config_value *cfg, __u32 slot)
{
	bool strict = cfg->flags & CONFIG_STRICT_SOURCE;
	const struct pod_value *here = pod_at(ctx->ifindex, slot);

	/* A bridge would send there what is for the device whose address it is. */
	if (strict && here && other_mac(ctx, here, ETHERNET_SOURCE))
		return REASON_UNKNOWN_SOURCE;
	if (ctx->protocol == bpf_htons(ETH_P_ARP))
		return strict ? check_arp(ctx, here, slot) : 0;
	if (p->flow.protocol == IPPROTO_ICMPV6 && p->icmp_type >= ICMP6_NEIGHBOUR_DISCOVERY_FIRST &&
	    p->icmp_type <= ICMP6_NEIGHBOUR_DISCOVERY_LAST)
		return check_neighbours(ctx, p, here, strict, slot);
	if (!p->flow.protocol)
		return 0;
	if (ctx->len > p->l4 + GROUP_MESSAGE_MAX)
		return REASON_MALFORMED;
	return !strict || no_address(&p->flow.saddr) ||
	       (p->flow.family == FAMILY_IPV4 && !p->flow.saddr.words[3]) ||
	       may_have(&p->flow.saddr, p->flow.family, here, ctx->ifindex, slot) ?
		       0 : REASON_UNKNOWN_SOURCE;
}

static __always_inline bool between_ports(const struct packet *p, __u8 family, __u16 from, __u16 to)
{
	return p->flow.protocol == IPPROTO_UDP && p->flow.family == family && p->flow.sport == bpf_htons(from) &&
	       p->flow.dport == bpf_htons(to);
}

/* Reports whether a datagram asks for an address. */
static __always_inline bool asks_for_address(const struct packet *p)
{
	if (between_ports(p, FAMILY_IPV4, DHCP4_CLIENT, DHCP4_SERVER))
		return !p->flow.saddr.words[3] && p->flow.daddr.words[3] == 0xffffffff;
	return between_ports(p, FAMILY_IPV6, DHCP6_CLIENT, DHCP6_SERVER) && link_local(&p->flow) &&
	       link_local_address(&p->flow.saddr, FAMILY_IPV6);
}

/* Reports whether a datagram is the answer, which no pod gives. */
static __noinline int gives_address(const struct packet *p, __u32 slot)
{
	struct tuple peer = reversed(&p->flow);

	if (!between_ports(p, FAMILY_IPV6, DHCP6_SERVER, DHCP6_CLIENT) &&
	    !(between_ports(p, FAMILY_IPV4, DHCP4_SERVER, DHCP4_CLIENT) && p->flow.daddr.words[3] == 0xffffffff))
		return false;
	return link_local(&p->flow) && !(destination_flags(&peer, slot) & IPCACHE_POD);
}

/* Judges a packet to many for the pod at the device. It begins no flow: each is judged. */
static __noinline __u32 judge_many(const struct packet *p, const struct pod_value *here,
				   const struct config_value *cfg, struct decision *d, __u32 how)
{
	if (here)
		return allowed(p, here, d, how);
	return cfg->flags & CONFIG_NETWORK_POLICIES && !(how & JUDGE_HOST) ? REASON_POD_NOT_READY : 0;
}

/* Reports whether a pod may send a packet from an address that is not its own: requests
 * for an address, and packets to all on the link. Other packets from a link-local address
 * are held, as that address does not tell which policies apply to the pod. */
static __always_inline bool of_the_link(const struct packet *p)
{
	return asks_for_address(p) ||
	       (to_many(&p->flow) && link_local_address(&p->source, p->flow.family));
}

/* Decides on such a packet: returns 0, or why it is dropped. */
static __noinline __u32 leaves_link_local(struct __sk_buff *ctx, const struct packet *p,
					  const struct config_value *cfg, struct decision *d)
{
	const struct pod_value *here = pod_at(ctx->ifindex, d->slot);

	if (cfg->flags & CONFIG_STRICT_SOURCE && here && other_mac(ctx, here, ETHERNET_SOURCE))
		return REASON_UNKNOWN_SOURCE;
	/* Where it arrives, this address does not tell that a pod has sent it. */
	if (gives_address(p, d->slot))
		return REASON_UNKNOWN_SOURCE;
	return asks_for_address(p) ? 0 : judge_many(p, here, cfg, d, DIRECTION_EGRESS);
}

/* Decides on a packet to a device whose destination is not an address of the pod that is known
 * there; pod is the one that has it, if any. Returns 0, or why the packet is dropped. */
static __noinline __u32 arrives_for_other(struct __sk_buff *ctx, const struct packet *p,
					  const struct pod_value *pod, const struct config_value *cfg,
					  struct decision *d)
{
	bool strict = cfg->flags & CONFIG_STRICT_SOURCE;
	const struct pod_value *here;
	__u32 how = DIRECTION_INGRESS;

	if (gives_address(p, d->slot))
		return 0;
	/* The pod cannot answer from a link-local address. */
	if (strict && link_local_address(&p->flow.daddr, p->flow.family))
		return REASON_UNKNOWN_DESTINATION;
	if (of_this_host(ctx, p))
		how |= host_reaches(cfg, CT_OF_HOST);
	here = pod_at(ctx->ifindex, d->slot);
	/* The broadcast address of a network is known by the frame. */
	if (to_many(&p->flow) || (!pod && is_group_frame(ctx)))
		return judge_many(p, here, cfg, d, how);
	if (strict && here && !may_have(&p->flow.daddr, p->flow.family, here, ctx->ifindex, d->slot))
		return REASON_UNKNOWN_DESTINATION;
	return held_at_destination(ctx, p, cfg) && unplaced(p, pod, &p->flow.daddr, d->slot) ?
		       REASON_POD_NOT_READY : 0;
}

/* Reports whether a frame is for another device: a bridge sends to all ports what it does not
 * know the port of. There are too many to report each. */
static __noinline int is_flooded(struct __sk_buff *ctx, __u32 slot)
{
	const struct pod_value *here = pod_at(ctx->ifindex, slot);

	return here && !is_group_frame(ctx) && other_mac(ctx, here, ETHERNET_DESTINATION);
}
