// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Reads are the kinds of objects that a program reads: [Config.Reads] of the agent, and
// [Config.OperatorReads].
type Reads []*Kind

// Reads returns what the agent reads, which is in a namespace.
func (c Config) Reads(namespace tables.AgentNamespace) Reads {
	reads := Reads(Kinds(c.EndpointSource))
	if c.EgressIPs {
		reads = append(reads, EgressIPPoolKind(), EgressVotersKind(namespace))
	}
	if c.EgressBGP {
		reads = append(reads, EgressBGPPeerKind())
	}
	return reads
}

// OperatorReads returns what the operator reads, for agents in a namespace.
func (c Config) OperatorReads(namespace tables.AgentNamespace) Reads {
	reads := Reads{
		operatorNodeKind(), egressPolicyKind(), networkPolicyKind(), ciliumPolicyKind(),
		ciliumClusterwidePolicyKind(), NodeReportKind(),
	}
	if c.EgressIPs {
		reads = append(reads, operatorPoolKind(), namespaceKind(), operatorVotersKind(namespace))
	}
	return reads
}

// Kinds returns the kinds of objects that are read with an endpoint source.
func Kinds(endpointSource string) []*Kind {
	kinds := []*Kind{
		namespaceKind(), nodeKind(), serviceKind(), endpointSliceKind(), egressPolicyKind(),
		networkPolicyKind(), ciliumPolicyKind(), ciliumClusterwidePolicyKind(), cidrGroupKind(),
	}
	if endpointSource == EndpointsCilium {
		return append(kinds, ciliumEndpointKind(), ciliumEndpointSliceKind(), ciliumIdentityKind(),
			ciliumNodeKind())
	}
	return append(kinds, podKind())
}

const noEndpoints = "--endpoint-source=" + EndpointsCilium +
	" has no endpoints without it: is Cilium installed?"

func podKind() *Kind {
	return &Kind{
		Version: "v1", Kind: "Pod", Resource: "pods", Namespaced: true,
		Protobuf: true,
		decoder:  decoderFor((&Interner{}).endpoints),
		open: func(t *Tables) *Store {
			w := &writer[*tables.Endpoint]{table: t.Endpoints, equal: EqualEndpoints,
				owned: tables.EndpointByName, complete: t.withAddrs}
			return w.store()
		},
	}
}

// EqualEndpoints reports whether two rows say the same. Labels, service account
// and ports are compared by the digest of the label set.
func EqualEndpoints(a, b *tables.Endpoint) bool {
	return a.LabelSet.ID == b.LabelSet.ID && a.Name == b.Name && a.UID == b.UID &&
		a.Node == b.Node && a.MirrorOf == b.MirrorOf &&
		a.SameClaim(b) && slices.Equal(a.StatusAddrs, b.StatusAddrs) &&
		a.Announced == b.Announced && slices.Equal(a.HostPorts, b.HostPorts) &&
		slices.Equal(a.Errors, b.Errors)
}

func namespaceKind() *Kind {
	return &Kind{
		Version: "v1", Kind: "Namespace", Resource: "namespaces",
		Protobuf: true,
		decoder:  decoderFor(namespaces),
		open: func(t *Tables) *Store {
			return storeOf(t.Namespaces, byName(tables.NamespaceByName))
		},
	}
}

func nodeKind() *Kind {
	return &Kind{
		Version: "v1", Kind: "Node", Resource: "nodes",
		Protobuf: true,
		decoder:  decoderFor(nodes),
		open:     func(t *Tables) *Store { return storeOf(t.Nodes, byName(tables.NodeByName)) },
	}
}

func serviceKind() *Kind {
	return &Kind{
		Version: "v1", Kind: "Service", Resource: "services", Namespaced: true,
		Protobuf: true,
		decoder:  decoderFor(services),
		open:     func(t *Tables) *Store { return storeOf(t.Services, tables.ServiceByName) },
	}
}

func endpointSliceKind() *Kind {
	return &Kind{
		Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice", Resource: "endpointslices",
		Namespaced: true,
		Protobuf:   true,
		decoder:    decoderFor(backendSlices),
		open:       func(t *Tables) *Store { return storeOf(t.BackendSlices, tables.BackendSliceByName) },
	}
}

func egressPolicyKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumEgressGatewayPolicy",
		Resource: "ciliumegressgatewaypolicies",
		Guarded:  true,
		decoder:  decoderFor(egressPolicies),
		open: func(t *Tables) *Store {
			w := &writer[*tables.EgressPolicy]{
				table: t.EgressPolicies,
				owned: byName(tables.EgressPolicyByName), complete: t.withPool,
				mine: func(p *tables.EgressPolicy) bool { return p.Namespace == "" },
			}
			return w.store()
		},
	}
}

func networkPolicyKind() *Kind {
	return &Kind{
		Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy",
		Resource: "networkpolicies", Namespaced: true,
		Protobuf: true,
		decoder:  decoderFor(kubernetesPolicies),
		open:     networkPolicyStore(tables.PolicyKubernetes),
	}
}

func ciliumPolicyKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumNetworkPolicy",
		Resource: "ciliumnetworkpolicies", Namespaced: true,
		Guarded: true,
		decoder: decoderFor(ciliumPolicies(tables.PolicyCilium)),
		open:    networkPolicyStore(tables.PolicyCilium),
	}
}

func ciliumClusterwidePolicyKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumClusterwideNetworkPolicy",
		Resource: "ciliumclusterwidenetworkpolicies",
		Guarded:  true,
		decoder:  decoderFor(ciliumPolicies(tables.PolicyCiliumClusterwide)),
		open:     networkPolicyStore(tables.PolicyCiliumClusterwide),
	}
}

// networkPolicyStore opens the store of one of the kinds that share a table.
func networkPolicyStore(kind tables.PolicyKind) func(*Tables) *Store {
	return func(t *Tables) *Store {
		w := &writer[*tables.NetworkPolicy]{
			table: t.NetworkPolicies,
			owned: func(n tables.Name) statedb.Query[*tables.NetworkPolicy] {
				return tables.NetworkPolicyByID(tables.PolicyID{Kind: kind, Name: n})
			},
			mine: func(p *tables.NetworkPolicy) bool { return p.Kind == kind },
		}
		return w.store()
	}
}

func cidrGroupKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumCIDRGroup", Resource: "ciliumcidrgroups",
		Guarded: true,
		decoder: decoderFor(cidrGroups),
		open: func(t *Tables) *Store {
			return storeOf(t.CIDRGroups, byName(tables.CIDRGroupByName))
		},
	}
}

func ciliumEndpointKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumEndpoint", Resource: "ciliumendpoints",
		Namespaced: true,
		Needed:     noEndpoints,
		decoder:    decoderFor(ciliumEndpoints),
		open: func(t *Tables) *Store {
			w := &writer[*tables.CiliumEndpoint]{
				table: t.CiliumEndpoints,
				owned: func(n tables.Name) statedb.Query[*tables.CiliumEndpoint] {
					return tables.CiliumEndpointByName(n, "")
				},
				mine: func(e *tables.CiliumEndpoint) bool { return e.Slice == "" },
			}
			return w.store()
		},
	}
}

func ciliumEndpointSliceKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2alpha1", Kind: "CiliumEndpointSlice",
		Resource: "ciliumendpointslices",
		decoder:  decoderFor(ciliumSliceEndpoints),
		open: func(t *Tables) *Store {
			w := &writer[*tables.CiliumEndpoint]{
				table: t.CiliumEndpoints, owned: byName(tables.CiliumEndpointsBySlice),
				mine: func(e *tables.CiliumEndpoint) bool { return e.Slice != "" },
			}
			return w.store()
		},
	}
}

func ciliumIdentityKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumIdentity", Resource: "ciliumidentities",
		Needed:  noEndpoints,
		decoder: decoderFor(identities),
		open: func(t *Tables) *Store {
			return storeOf(t.Identities, func(n tables.Name) statedb.Query[*tables.Identity] {
				return tables.IdentityByID(identityOf(n))
			})
		},
	}
}

func ciliumNodeKind() *Kind {
	return &Kind{
		Group: "cilium.io", Version: "v2", Kind: "CiliumNode", Resource: "ciliumnodes",
		decoder: decoderFor(ciliumNodes),
		open: func(t *Tables) *Store {
			return storeOf(t.CiliumNodes, byName(tables.CiliumNodeByName))
		},
	}
}

// byName queries the rows of an object without namespace.
func byName[Row any](query func(string) statedb.Query[Row]) func(tables.Name) statedb.Query[Row] {
	return func(n tables.Name) statedb.Query[Row] { return query(n.Name) }
}
