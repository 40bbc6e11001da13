// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// fuzz checks that a decoder takes any input, always says the same about it, and
// that the rows it gives can be dumped and hold what valid checks.
func fuzz[Row any](f *testing.F, k *Kind, valid func(*testing.T, Row), seeds ...string) {
	for _, s := range append(seeds, "", "{}", `{"metadata":{"name":"a"}}`, `{"metadata":{"name":"a"},"spec":[1],"status":7}`) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := k.Decode(data)
		if err != nil {
			require.Nil(t, o)
			return
		}
		again, err := k.Decode(data)
		require.NoError(t, err)
		require.Equal(t, o, again)
		if o.Err != nil {
			require.Empty(t, o.rows)
			return
		}
		require.NotEmpty(t, o.Name.Name)
		require.Equal(t, k.Namespaced, o.Name.Namespace != "")
		for _, row := range o.rows {
			_, err := json.Marshal(row)
			require.NoError(t, err)
			valid(t, row.(Row))
		}
	})
}

func validAddrs(t *testing.T, addrs ...netip.Addr) {
	for _, a := range addrs {
		require.True(t, a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified(), a)
	}
}

func validPrefixes(t *testing.T, prefixes ...netip.Prefix) {
	for _, p := range prefixes {
		require.True(t, p.IsValid() && p == p.Masked() && !p.Addr().Is4In6(), p)
	}
}

func validSelector(t *testing.T, text string) {
	_, err := labels.Parse(text)
	require.NoError(t, err, text)
}

func FuzzPod(f *testing.F) {
	fuzz(f, podKind(), func(t *testing.T, e *tables.Endpoint) {
		validAddrs(t, e.Addrs...)
		set := e.LabelSet
		require.Equal(t, tables.NewLabelSet(e.Namespace, set.ServiceAccount, set.Labels.Set(), set.NamedPorts), set)
		for _, p := range set.NamedPorts {
			require.NotZero(t, p.Port)
			require.NotEmpty(t, p.Name)
		}
	}, `{"metadata":{"name":"a","namespace":"b","labels":{"x":"y"},"creationTimestamp":"2025-01-01T00:00:00Z"},
		"spec":{"nodeName":"n","containers":[{"ports":[{"name":"http","containerPort":80,"protocol":"TCP"}]}]},
		"status":{"phase":"Running","podIPs":[{"ip":"::ffff:10.0.0.1"}]}}`,
		string(protobufOf(f, "Pod", typedPod(f, 1))))
}

func FuzzNamespace(f *testing.F) {
	fuzz(f, namespaceKind(), func(t *testing.T, n *tables.Namespace) {
		require.Equal(t, n.Name, n.Labels[tables.LabelNamespaceName])
	})
}

func FuzzNode(f *testing.F) {
	fuzz(f, nodeKind(), func(t *testing.T, n *tables.Node) {
		validAddrs(t, append(n.InternalIPs, n.OtherIPs...)...)
		validPrefixes(t, n.PodCIDRs...)
	}, `{"metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.1/8"]},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`)
}

func FuzzEgressVoters(f *testing.F) {
	fuzz(f, EgressVotersKind("agents"), func(t *testing.T, v *tables.EgressVoters) {
		if v.Error != "" {
			require.Equal(t, &tables.EgressVoters{Error: v.Error}, v)
			return
		}
		require.NotZero(t, v.Generation)
		for _, set := range v.Sets {
			require.NotZero(t, set.Number)
			require.LessOrEqual(t, set.Majority(), len(set.Voters))
			for _, voter := range set.Voters {
				validAddrs(t, voter.Addr)
			}
		}
	}, `{"metadata":{"name":"sluice-egress-voters","namespace":"agents"},
		"data":{"voters":"{\"generation\":1,\"sets\":[{\"number\":1,\"voters\":[{\"node\":\"a\",\"addr\":\"10.0.0.1\"}]}]}"}}`)
}

func FuzzService(f *testing.F) {
	fuzz(f, serviceKind(), func(t *testing.T, s *tables.Service) {
		validAddrs(t, s.Addrs...)
		for _, p := range s.Ports {
			require.NotZero(t, p.Port)
			require.Equal(t, p.TargetName == "", p.TargetPort != 0)
		}
	}, `{"metadata":{"name":"n"},"spec":{"clusterIP":"10.0.0.1","externalIPs":["::1"],
		"ports":[{"name":"a","port":80,"targetPort":"b"},{"protocol":"UDP","port":53,"targetPort":5353}]},"status":{"loadBalancer":{"ingress":[{"ip":"x"}]}}}`)
}

func FuzzEndpointSlice(f *testing.F) {
	fuzz(f, endpointSliceKind(), func(t *testing.T, s *tables.BackendSlice) {
		validAddrs(t, s.Addrs...)
		for _, p := range s.Ports {
			require.NotZero(t, p.Port)
		}
	}, `{"metadata":{"name":"n"},"endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod"}},{"addresses":["10.0.0.2"]}],
		"ports":[{"name":"http","protocol":"TCP","port":8080},{}]}`)
}

func FuzzEgressPolicy(f *testing.F) {
	fuzz(f, egressPolicyKind(), func(t *testing.T, p *tables.EgressPolicy) {
		validPrefixes(t, append(p.Destinations, p.Excluded...)...)
		require.NotEmpty(t, p.Gateways)
		require.LessOrEqual(t, len(p.Gateways), maxGateways)
		for _, s := range p.Selectors {
			validSelector(t, s.Namespaces)
			validSelector(t, s.Pods)
			validSelector(t, s.Nodes)
		}
		for _, g := range p.Gateways {
			validSelector(t, g.Nodes)
			require.False(t, g.Error == "" && g.Interface != "" && g.EgressIP.IsValid())
			if g.Error != "" {
				require.NotEmpty(t, p.Errors)
			}
		}
		if len(p.Selectors) == 0 || len(p.Destinations) == 0 {
			require.NotEmpty(t, p.Errors)
		}
	}, `{"metadata":{"name":"p"},"spec":{"selectors":[{"podSelector":{"matchLabels":{"a":"b","k8s:a":"c"},"matchExpressions":[{"key":"x","operator":"In","values":["y"]}]}}],
		"destinationCIDRs":["10.0.0.0/8"],"excludedCIDRs":["::/0"],"egressGateway":{"nodeSelector":{},"egressIP":"192.0.2.1"},"egressGateways":[{"interface":"eth0"}]}}`)
}

func FuzzCiliumEndpoint(f *testing.F) {
	fuzz(f, ciliumEndpointKind(), validCiliumEndpoint,
		`{"metadata":{"name":"a","uid":"u"},"status":{"identity":{"id":7},"networking":{"node":"192.0.2.1","addressing":[{"ipv4":"10.0.0.1"}]},"named-ports":[{"name":"a","port":1}]}}`)
}

func FuzzCiliumEndpointSlice(f *testing.F) {
	fuzz(f, ciliumEndpointSliceKind(), validCiliumEndpoint,
		`{"metadata":{"name":"a"},"namespace":"b","endpoints":[{"name":"c","id":7,"networking":{"node":"192.0.2.1","addressing":[{"ipv4":"10.0.0.1"}]}},{"name":"c"},{}]}`)
}

func validCiliumEndpoint(t *testing.T, e *tables.CiliumEndpoint) {
	validAddrs(t, e.Addrs...)
	require.NotEmpty(t, e.Name.Name)
	if e.Identity == 0 || !e.NodeIP.IsValid() {
		require.NotEmpty(t, e.Errors)
	}
}

func FuzzCiliumIdentity(f *testing.F) {
	fuzz(f, ciliumIdentityKind(), func(t *testing.T, i *tables.Identity) {
		require.NotZero(t, i.ID)
		require.True(t, i.Namespace != "" || len(i.Errors) > 0)
	}, `{"metadata":{"name":"7"},"security-labels":{"k8s:a":"b","k8s:io.kubernetes.pod.namespace":"x","reserved:host":""}}`)
}

func FuzzCiliumNode(f *testing.F) {
	fuzz(f, ciliumNodeKind(), func(t *testing.T, n *tables.CiliumNode) { validAddrs(t, n.Addrs...) },
		`{"metadata":{"name":"n"},"spec":{"addresses":[{"ip":"10.0.0.1"},{"ip":7}]}}`)
}

func FuzzNetworkPolicy(f *testing.F) {
	fuzz(f, networkPolicyKind(), validNetworkPolicy,
		`{"metadata":{"name":"p"},"spec":{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Egress"],"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}],
		"egress":[{"to":[{"namespaceSelector":{},"podSelector":{}}],"ports":[{"port":80,"endPort":90},{"port":"dns","protocol":"UDP"}]},{}]}}`,
		`{"metadata":{"name":"p"},"spec":{"ingress":[{"form":[]},{"from":[{}],"ports":[7]}],"policyTypes":["x"]}}`)
}

var fuzzedCiliumPolicies = []string{
	`{"metadata":{"name":"p"},"spec":{"endpointSelector":{"matchLabels":{"k8s:a":"b"}},"enableDefaultDeny":{"ingress":false},
		"ingress":[{"fromEndpoints":[{"matchLabels":{"reserved:host":""}},{}],"toPorts":[{"ports":[{"port":"80","endPort":90,"protocol":"TCP"},{"port":"http"}],"rules":{"http":[{}]}}]}],
		"ingressDeny":[{"fromCIDRSet":[{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]},{"cidrGroupRef":"g"},{"cidrGroupSelector":{}}]},{"fromCIDR":["x"],"fromEntities":["all"]}]}}`,
	`{"metadata":{"name":"p"},"specs":[{"nodeSelector":{},"egress":[{"toEntities":["world","x"]}]},{"endpointSelector":{},"egress":[{"toServices":[{"k8sService":{"serviceName":"a"}},{"k8sServiceSelector":{"selector":{}}}]},
		{"toFQDNs":[{"matchName":"a"}]},{"icmps":[{"fields":[{"type":"EchoRequest","family":"IPv6"},{"type":8}]}],"toNodes":[{}]}],"egressDeny":[{"toGroups":[{}],"authentication":{"mode":"required"}},7]}]}`,
}

func FuzzCiliumPolicy(f *testing.F) {
	fuzz(f, ciliumPolicyKind(), validNetworkPolicy, fuzzedCiliumPolicies...)
}

func FuzzCiliumClusterwidePolicy(f *testing.F) {
	fuzz(f, ciliumClusterwidePolicyKind(), validNetworkPolicy, fuzzedCiliumPolicies...)
}

func validNetworkPolicy(t *testing.T, p *tables.NetworkPolicy) {
	require.Equal(t, p.Kind == tables.PolicyCiliumClusterwide, p.Namespace == "")
	p.TableRow()
	for _, r := range p.Rules {
		validSelector(t, r.Subject.Pods)
		if p.Namespace != "" {
			require.Contains(t, r.Subject.Pods, "io.kubernetes.pod.namespace="+p.Namespace)
		}
		for _, traffic := range append(r.Ingress.Traffic, r.Egress.Traffic...) {
			validTraffic(t, p, traffic)
		}
	}
}

func validTraffic(t *testing.T, p *tables.NetworkPolicy, traffic tables.PolicyTraffic) {
	require.False(t, traffic.AnyPeer && len(traffic.Peers) > 0)
	if traffic.Unsupported != "" {
		require.NotEmpty(t, p.Unsupported)
		require.True(t, traffic.Deny || !traffic.AnyPeer && len(traffic.Peers) == 0)
	}
	for _, port := range traffic.Ports {
		require.NotZero(t, port.Protocol)
		require.LessOrEqual(t, port.First, port.Last)
		require.True(t, port.Name == "" || port.Last == 0)
	}
	for _, peer := range traffic.Peers {
		validSelector(t, peer.Pods.Namespaces)
		validSelector(t, peer.Pods.Pods)
		validSelector(t, peer.Labels)
		switch peer.Kind {
		case tables.PeerCIDR:
			validPrefixes(t, peer.CIDR)
			validPrefixes(t, peer.Except...)
			for _, except := range peer.Except {
				require.True(t, peer.CIDR.Overlaps(except) && peer.CIDR.Bits() <= except.Bits())
			}
		case tables.PeerEntity:
			require.NotEmpty(t, peer.Entity)
		case tables.PeerServices:
			require.True(t, peer.Service.Name == "" || peer.Service.Namespace != "")
		case tables.PeerCIDRGroups:
			validPrefixes(t, peer.Except...)
		case tables.PeerPods, tables.PeerNodes:
		default:
			require.Fail(t, "no kind of peers", peer.Kind)
		}
	}
}

func FuzzCIDRGroup(f *testing.F) {
	fuzz(f, cidrGroupKind(), func(t *testing.T, g *tables.CIDRGroup) { validPrefixes(t, g.Prefixes...) },
		`{"metadata":{"name":"g"},"spec":{"externalCIDRs":["10.0.0.0/8","10.0.0.1","::1",7,"x"]}}`)
}
