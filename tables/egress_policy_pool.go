// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
)

// PoolAnnotation of a CiliumEgressGatewayPolicy names the EgressIPPool that gives it an address,
// which it names none of. That of a Namespace has its pods leave the cluster with an address of
// the pool: see [NamespacePolicy].
const PoolAnnotation = "sluice.net/egress-ip-pool"

// NamespacePolicy returns the policy of a namespace that names a pool: all of its pods leave the
// cluster with the address that the pool gives to it, wherever no other policy says otherwise.
// Its name is none that an object can have.
func NamespacePolicy(n *Namespace) *EgressPolicy {
	return &EgressPolicy{
		Name: "namespace:" + n.Name, Namespace: n.Name,
		Selectors: []EgressSelector{{Namespaces: LabelNamespaceName + "=" + n.Name}},
		Destinations: []netip.Prefix{
			netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		},
		Gateways: []GatewaySpec{{Pool: n.EgressIPPool}},
	}
}

// Pool returns the EgressIPPool that gives the policy its address, empty if none does.
func (p *EgressPolicy) Pool() string {
	for i := range p.Gateways {
		if pool := p.Gateways[i].Pool; pool != "" {
			return pool
		}
	}
	return ""
}

// NamedEgressIPs returns those of EgressIPs that the policy names by itself.
func (p *EgressPolicy) NamedEgressIPs() []netip.Addr {
	if p.Pool() != "" {
		return nil
	}
	return p.EgressIPs()
}

// WantsIPv6 reports whether the policy is for IPv6 only.
func (p *EgressPolicy) WantsIPv6() bool {
	return len(p.Destinations) > 0 && !slices.ContainsFunc(p.Destinations,
		func(d netip.Prefix) bool { return d.Addr().Is4() })
}

// WithPool returns the policy with the address that its pool has given it now, itself if it has
// that already, or needs none. While there is none its items elect no gateway.
func (p *EgressPolicy) WithPool(
	txn statedb.ReadTxn, pools statedb.Table[*EgressIPPool],
) *EgressPolicy {
	name := p.Pool()
	if name == "" {
		return p
	}
	addr, reason := allocatedBy(txn, pools, name, p.Name)
	gateways := slices.Clone(p.Gateways)
	for i := range gateways {
		if g := &gateways[i]; g.Pool != "" {
			g.EgressIP, g.Error = addr, reason
		}
	}
	if slices.Equal(gateways, p.Gateways) {
		return p
	}
	with := *p
	with.Gateways = gateways
	return &with
}

// WaitsForAddr reports whether the pool of the policy has yet to give it an address.
func (p *EgressPolicy) WaitsForAddr() bool {
	pool := p.Pool()
	return pool != "" && slices.ContainsFunc(p.Gateways,
		func(g GatewaySpec) bool { return g.Error == waitsFor(pool) })
}

func waitsFor(pool string) string { return "waits for an address of EgressIPPool " + pool }

// allocatedBy returns the address that a pool has given to a policy, or why there is none.
func allocatedBy(
	txn statedb.ReadTxn, pools statedb.Table[*EgressIPPool], name, policy string,
) (addr netip.Addr, reason string) {
	pool, _, found := pools.Get(txn, EgressIPPoolByName(name))
	if !found {
		return addr, "there is no EgressIPPool " + name + ", or --egress-ips is off"
	}
	if pool.Fixed {
		return addr, "EgressIPPool " + name + " is fixed: the policy has to name an address as egressIP"
	}
	for _, a := range pool.Allocations {
		if a.Policy == policy && pool.Contains(a.Addr) {
			return a.Addr, ""
		}
	}
	return addr, waitsFor(name)
}
