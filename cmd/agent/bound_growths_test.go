// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// growths are the kinds of objects that grow in [TestMemoryIsBounded]. One is missing: pods with
// labels of their own with egress policies that select many of them. Each of their label sets has
// rules of its own, and so they have no bound but that of their product.
var growths = []growth{
	{"pods with labels of their own", 2048, everything, 4, `sluice_ipcache.*map full`,
		each(func(i int) []string {
			return []string{boundPod("grows", fmt.Sprint("p", i), 1, i, fmt.Sprintf("own: l%d", i))}
		})},
	{"pods of this node with labels of their own", 2048, everything, 12,
		`sluice_subjects.*map full`, each(ownPod)},
	{"pods that share labels", 2048, everything, 8, `sluice_pods.*map full`,
		each(func(i int) []string {
			return []string{boundPod("grows", fmt.Sprint("p", i), 0, i, "app: same")}
		})},
	{"nodes", 1024, everything, 8, `sluice_nodes.*map full`, each(func(i int) []string {
		return []string{boundNode(i+10, "egress: none")}
	})},
	{"services", 2048, everything, 2, `sluice_ipcache.*map full`, each(func(i int) []string {
		return []string{fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: s%d,
namespace: grows, labels: {app: x}}, spec: {selector: {own: l%d}, clusterIP: 172.20.%d.%d,
ports: [{port: 80}]}}`, i, i, i>>8, i&255), toServices}
	})},

	{"ports of a policy", 4096, ofRuleset, 0, `max-ruleset-entries=256`, whole(func(n int) string {
		return netpol("ports", "", "ports: ["+listOf(n, func(i int) string {
			return fmt.Sprintf("{port: %d}", 1+2*i)
		})+"]")
	})},
	{"label peers of a policy", 4096, ofRuleset, 0, `max-ruleset-entries=256`,
		whole(func(n int) string {
			return netpol("peers", "", "from: ["+listOf(n, func(i int) string {
				return fmt.Sprintf("{podSelector: {matchLabels: {app: l%d}}}", i)
			})+"]")
		})},
	{"prefixes of a policy", 4096, ofRuleset, 0, `max-ruleset-entries=256`, whole(func(n int) string {
		return netpol("prefixes", "", "from: ["+listOf(n, func(i int) string {
			return fmt.Sprintf("{ipBlock: {cidr: 20.%d.%d.0/24, except: [20.%d.%d.128/25]}}",
				i>>8, i&255, i>>8, i&255)
		})+"]")
	})},
	{"blocks with exceptions", 512, everything, 24, `map-size-p(olicy|eers)=`,
		each(func(i int) []string {
			name, own := fmt.Sprint("p", i), fmt.Sprintf("own: l%d", i%64)
			return append(ownPod(i%64), netpol(name, own, fmt.Sprintf(
				"from: [{ipBlock: {cidr: 0.0.0.0/0, except: [20.0.%d.%d/32]}}]", i>>8, i&255)))
		})},
	{"label selectors in many policies", 512, everything, 24, `map-size-peers=512`,
		each(func(i int) []string {
			name, own := fmt.Sprint("p", i), fmt.Sprintf("own: l%d", i%64)
			return append(ownPod(i%64), netpol(name, own, fmt.Sprintf(
				"from: [{podSelector: {matchLabels: {none: l%d}}}]", i)))
		})},
	{"prefixes of a group", 4096, ofPrefixes, 0, `map-size-peers=512`, func(_, n int) []string {
		return []string{
			"{apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: g}, spec: " +
				"{externalCIDRs: [" + listOf(n, boundPrefix) + "]}}",
			cilium("group", "toCIDRSet: [{cidrGroupRef: g}]"),
		}
	}},
	{"backends of a service", 4096, ofPrefixes, 0, `map-size-peers=512`, func(from, to int) []string {
		return []string{
			fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
metadata: {name: s%d, namespace: grows, labels: {kubernetes.io/service-name: s}},
ports: [{port: 80}], endpoints: [%s]}`, to, listOf(to-from, func(i int) string {
				return fmt.Sprintf("{addresses: [20.0.%d.%d]}", (from+i)>>8, (from+i)&255)
			})),
			`{apiVersion: v1, kind: Service, metadata: {name: s, namespace: grows, labels: {app: x}},
spec: {clusterIP: 172.20.0.1, ports: [{port: 80}]}}`, toServices,
		}
	}},

	{"policies of one pod", 2048, ofRuleset, 3, `max-ruleset-entries=256`, each(func(i int) []string {
		return []string{netpol(fmt.Sprint("p", i), "app: first", fmt.Sprintf(
			"from: [{podSelector: {matchLabels: {app: l%d}}}], ports: [{port: %d}]", i, i+1))}
	})},
	{"policies of many pods", 512, everything, 24, `"tooLarge"`, each(func(i int) []string {
		return []string{ownPod(i % 256)[0], netpol(fmt.Sprint("p", i), fmt.Sprintf("own: l%d", i%256),
			"ports: ["+listOf(16, func(j int) string {
				return fmt.Sprintf("{port: %d}", 1+64*i+2*j)
			})+"]")}
	})},
	{"policies of many pods that name prefixes", 256, everything, 24, `map-size-peers=512`,
		each(func(i int) []string {
			return append(ownPod(i), netpol(fmt.Sprint("p", i), fmt.Sprintf("own: l%d", i),
				"from: ["+listOf(8, func(j int) string {
					return "{ipBlock: {cidr: " + boundPrefix(8*i+j) + "}}"
				})+"]"))
		})},
	{"pods and policies that select each other at random", 256, everything, 24, `"tooLarge"`,
		each(func(i int) []string {
			random, labels := rand.New(rand.NewPCG(uint64(i), 0)), "app: random"
			for j := range 64 {
				if random.IntN(8) == 0 {
					labels += fmt.Sprintf(", l%d: a", j)
				}
			}
			return []string{
				boundPod("grows", fmt.Sprint("p", i), 0, i, labels),
				netpol(fmt.Sprint("p", i), fmt.Sprintf("l%d: a", i%64), fmt.Sprintf(
					"from: [{podSelector: {matchLabels: {l%d: a}}}], ports: [{port: %d}]", i*5%64, i+1)),
			}
		})},

	{"lists of gateways", 64, everything, 264, `sluice_gateways.*map full`, each(func(i int) []string {
		return []string{boundEgress(i, "app: first", boundPrefix(i),
			fmt.Sprintf("{nodeSelector: {matchLabels: {egress: a%d}}}", i))}
	})},
	// Each is a rule for each label set that the policy selects, of which there is one here.
	{"destinations of an egress policy", 4096, everything, 8, `sluice_egress.*map full`,
		whole(func(n int) string {
			return boundEgress(0, "app: first", listOf(n, boundPrefix),
				"{nodeSelector: {matchLabels: {egress: a}}}")
		})},
}

// each grows by objects, whole by one object that says more.
func each(one func(i int) []string) func(from, to int) []string {
	return func(from, to int) (all []string) {
		for i := from; i < to; i++ {
			all = append(all, one(i)...)
		}
		return all
	}
}

func whole(object func(n int) string) func(from, to int) []string {
	return func(_, to int) []string { return []string{object(to)} }
}

func listOf(n int, item func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return strings.Join(items, ", ")
}

func boundAddr(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16+1, i>>8&255, i&255) }

func boundPrefix(i int) string { return fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255) }

func boundPod(namespace, name string, node, i int, labels string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {%s}},
spec: {nodeName: node-%d, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: %s}]}}`,
		name, namespace, labels, node, boundAddr(i))
}

// ownPod is a pod of this node that has a label of its own.
func ownPod(i int) []string {
	return []string{boundPod("grows", fmt.Sprint("p", i), 0, i, fmt.Sprintf("own: l%d", i))}
}

func boundNamespace(name string) string {
	return "{apiVersion: v1, kind: Namespace, metadata: {name: " + name + "}}"
}

func boundNode(i int, labels string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: node-%d, labels: {%s}},
spec: {podCIDRs: [100.%d.%d.0/24]}, status: {
addresses: [{type: InternalIP, address: 192.168.%d.%d}],
conditions: [{type: Ready, status: "True"}]}}`, i, labels, 64+i>>8, i&255, i>>8, i&255)
}

func netpol(name, pods, ingress string) string {
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
metadata: {name: %s, namespace: grows}, spec: {podSelector: {matchLabels: {%s}}, ingress: [{%s}]}}`,
		name, pods, ingress)
}

func cilium(name, egress string) string {
	return fmt.Sprintf(`{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy,
metadata: {name: %s, namespace: grows}, spec: {endpointSelector: {},
egress: [{%s}]}}`, name, egress)
}

// toServices is a policy that names all services of the namespace.
var toServices = cilium("services",
	"toServices: [{k8sServiceSelector: {selector: {matchLabels: {app: x}}, namespace: grows}}]")

func boundEgress(i int, pods, destination, gateways string) string {
	return fmt.Sprintf(`{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy,
metadata: {name: e%d}, spec: {selectors: [{podSelector: {matchLabels: {%s}}}],
destinationCIDRs: [%s], egressGateways: [%s]}}`, i, pods, destination, gateways)
}
