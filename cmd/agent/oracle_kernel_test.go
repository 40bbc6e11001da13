// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
)

// inKernel is what the maps make of packets from src to dst. A rule that leads
// to a group without all its buckets is an error. Sources are of one bucket
// each: the decision is that of the source's, or with anyBucket of all.
func inKernel(r bpf.Reader, src, dst netip.Addr, anyBucket bool) (string, error) {
	source := bpf.AddressFrom(src)
	pod, found := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", bpf.PodKey{Addr: source})
	local := found && pod.Flags&bpf.PodLocal != 0
	route, routed := bpf.Get[bpf.SubjectKey, bpf.RouteValue](
		r, "sluice_routes", bpf.SubjectKey{Subject: pod.Subject})
	switch {
	case local && pod.Subject == 0 && coveredByKernel(r, dst):
		return held, nil
	case local && !routed:
		return plain, nil
	case !routed:
		return unknown, nil
	}
	rule, found := bpf.Match[bpf.EgressKey, bpf.EgressValue](r, "sluice_egress",
		bpf.EgressKeyFrom(route.EgressRuleset, netip.PrefixFrom(dst, dst.BitLen())))
	switch {
	case found && rule.Value.Group != bpf.GroupExcluded:
	case local:
		return plain, nil
	default:
		return unknown, nil // what a gateway's own rules do not cover is dropped there
	}
	ways := map[string]bool{}
	for bucket := range uint32(bpf.GatewayBuckets) {
		v, found := bpf.Get[bpf.GatewayKey, bpf.GatewayValue](r, "sluice_gateways",
			bpf.GatewayKey{Group: rule.Value.Group, Bucket: bucket})
		if !found {
			return "", fmt.Errorf("%s to %s: egress ruleset %d, group %d, but no bucket %d",
				src, dst, route.EgressRuleset, rule.Value.Group, bucket)
		}
		if octets := src.As16(); anyBucket || uint32(octets[15]) == bucket {
			ways[v.String()] = true
		}
	}
	return "gateways " + sortedKeys(ways), nil
}

// inClusterByKernel reports whether the ipcache has an address as inside the cluster.
func inClusterByKernel(r bpf.Reader, addr netip.Addr) bool {
	e, found := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache",
		bpf.IPCacheKeyFrom(netip.PrefixFrom(addr, addr.BitLen())))
	return found && e.Value.Flags&bpf.IPCacheInCluster != 0
}
