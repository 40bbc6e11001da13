// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

var boundFlags = []string{
	"--node-name=node-1", "--retry-min=20ms", "--retry-max=500ms",
	"--map-size-pods=512", "--map-size-ipcache=512", "--map-size-subjects=512", "--map-size-peers=512",
	"--map-size-egress=512", "--map-size-gateways=1024", "--map-size-covered=512", "--map-size-nodes=64",
	"--map-size-exits=16", "--map-size-policy=4096", "--map-size-verdicts=4096", "--max-ruleset-entries=512",
}

func boundPod(ns, name, node string, i int, labels string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {%s}}, spec: {nodeName: %s, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: 10.%d.%d.%d}]}}",
		name, ns, labels, node, i>>16+1, i>>8&255, i&255)
}

func boundNode(i int, labels string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: node-%d, labels: {%s}}, spec: {podCIDRs: [100.%d.%d.0/24]}, status: {addresses: [{type: InternalIP, address: 192.168.%d.%d}], conditions: [{type: Ready, status: 'True'}]}}",
		i, labels, 64+i>>8, i&255, i>>8, i&255)
}

func boundPolicy(name, pods, rest string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: tenant}, spec: {podSelector: {%s}, %s}}", name, pods, rest)
}

func boundCilium(name, pods, rest string) string {
	return fmt.Sprintf("{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: %s, namespace: tenant}, spec: {endpointSelector: {matchLabels: {%s}}, %s}}", name, pods, rest)
}

func boundEgress(name, pods, dst, gw string) string {
	return fmt.Sprintf("{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy, metadata: {name: %s}, spec: {selectors: [{podSelector: {matchLabels: {%s}}}], destinationCIDRs: [%s], egressGateways: [%s]}}", name, pods, dst, gw)
}

func boundList(n int, one func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = one(i)
	}
	return strings.Join(all, ", ")
}

func boundEach(from, to int, one func(i int) []string) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, one(i)...)
	}
	return all
}

type growth struct {
	name string
	most int
	grow func(from, to int) []string
}

var growths = []growth{
	{"pods with labels of their own", 2048, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-2", i, fmt.Sprintf("own: l%d", i))}
		})
	}},
	{"pods of this node with labels of their own", 2048, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-1", i, fmt.Sprintf("own: l%d", i))}
		})
	}},
	{"pods that share labels", 2048, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-1", i, "app: same")}
		})
	}},
	{"ports", 4096, func(_, to int) []string {
		return []string{boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundPolicy("ports", "", "ingress: [{ports: ["+boundList(to, func(i int) string { return fmt.Sprintf("{port: %d}", 1+2*i) })+"]}]")}
	}},
	{"label peers", 2048, func(_, to int) []string {
		return []string{boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundPolicy("peers", "", "ingress: [{from: ["+boundList(to, func(i int) string { return fmt.Sprintf("{podSelector: {matchLabels: {app: l%d}}}", i) })+"]}]")}
	}},
	{"prefixes", 2048, func(_, to int) []string {
		return []string{boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundPolicy("peers", "", "ingress: [{from: ["+boundList(to, func(i int) string {
				return fmt.Sprintf("{ipBlock: {cidr: 20.%d.%d.0/24, except: [20.%d.%d.128/25]}}", i>>8, i&255, i>>8, i&255)
			})+"]}]")}
	}},
	{"policies of one pod", 2048, func(from, to int) []string {
		return append(boundEach(from, to, func(i int) []string {
			return []string{boundPolicy(fmt.Sprint("p", i), "", fmt.Sprintf("ingress: [{from: [{podSelector: {matchLabels: {app: l%d}}}], ports: [{port: %d}]}]", i, i+1))}
		}), boundPod("tenant", "p", "node-1", 1, "app: a"))
	}},
	{"policies of many pods", 1024, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-1", i, fmt.Sprintf("own: l%d", i)),
				boundPolicy(fmt.Sprint("p", i), fmt.Sprintf("matchLabels: {own: l%d}", i), fmt.Sprintf("ingress: [{from: [{podSelector: {matchLabels: {own: l%d}}}], ports: [%s]}]", i,
					boundList(16, func(j int) string { return fmt.Sprintf("{port: %d}", 1+2*j+40*i) })))}
		})
	}},
	{"pods and policies with random labels", 256, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			var labels []string
			for j := range 8 {
				labels = append(labels, fmt.Sprintf("l%d: a", (i*7+j*j*13)%64))
			}
			slices.Sort(labels)
			labels = slices.Compact(labels)
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-1", i, strings.Join(labels, ", ")),
				boundPolicy(fmt.Sprint("p", i), fmt.Sprintf("matchLabels: {l%d: a}", i%64), fmt.Sprintf("ingress: [{from: [{podSelector: {matchLabels: {l%d: a}}}], ports: [{port: %d}]}]", i*5%64, i+1))}
		})
	}},
	{"nested prefixes", 512, func(from, to int) []string {
		return append(boundEach(from, to, func(i int) []string {
			return []string{boundPolicy(fmt.Sprint("p", i), fmt.Sprintf("matchLabels: {own: l%d}", i), fmt.Sprintf("ingress: [{from: [{ipBlock: {cidr: 20.0.0.0/8}}, {ipBlock: {cidr: 20.%d.%d.0/24}}]}]", i>>8, i&255)),
			boundPod("tenant", fmt.Sprint("p", i), "node-1", i, fmt.Sprintf("own: l%d", i))}
		}))
	}},
	{"a group of prefixes", 2048, func(_, to int) []string {
		return []string{boundPod("tenant", "p", "node-1", 1, "app: a"),
			"{apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: g}, spec: {externalCIDRs: [" + boundList(to, func(i int) string { return fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255) }) + "]}}",
			boundCilium("g", "", "egress: [{toCIDRSet: [{cidrGroupRef: g}]}]")}
	}},
	{"backends of a service", 2048, func(from, to int) []string {
		return append(boundEach(from/64, to/64, func(i int) []string {
			return []string{fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: s%d, namespace: tenant, labels: {kubernetes.io/service-name: s}}, ports: [{port: 80}], endpoints: [%s]}",
				i, boundList(64, func(j int) string { return fmt.Sprintf("{addresses: [20.%d.%d.%d]}", (i*64+j)>>16, (i*64+j)>>8&255, (i*64+j)&255) }))}
		}), "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: tenant}, spec: {clusterIP: 172.20.0.1, ports: [{port: 80}]}}",
			boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundCilium("g", "", "egress: [{toServices: [{k8sService: {serviceName: s, namespace: tenant}}]}]"))
	}},
	{"services", 1024, func(from, to int) []string {
		return append(boundEach(from, to, func(i int) []string {
			return []string{fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: s%d, namespace: tenant, labels: {app: x}}, spec: {selector: {own: l%d}, clusterIP: 172.20.%d.%d, ports: [{port: 80}]}}", i, i, i>>8, i&255)}
		}), boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundCilium("g", "", "egress: [{toServices: [{k8sServiceSelector: {selector: {matchLabels: {app: x}}, namespace: tenant}}]}]"))
	}},
	{"egress destinations", 2048, func(_, to int) []string {
		return []string{boundPod("tenant", "p", "node-1", 1, "app: a"),
			boundEgress("e", "app: a", boundList(to, func(i int) string { return fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255) }), "{nodeSelector: {matchLabels: {gw: a}}}")}
	}},
	{"egress gateways", 64, func(from, to int) []string {
		return append(boundEach(from, to, func(i int) []string {
			return []string{boundEgress(fmt.Sprint("e", i), "app: a", fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255), fmt.Sprintf("{nodeSelector: {matchLabels: {gw: a%d}}}", i))}
		}), boundPod("tenant", "p", "node-1", 1, "app: a"))
	}},
	{"pods and egress policies", 256, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string {
			return []string{boundPod("tenant", fmt.Sprint("p", i), "node-1", i, fmt.Sprintf("own: l%d, all: a", i)),
				boundEgress(fmt.Sprint("e", i), fmt.Sprintf("all: a"), fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255), "{nodeSelector: {matchLabels: {gw: a}}}"),
				boundEgress(fmt.Sprint("f", i), fmt.Sprintf("own: l%d", i), fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255), "{nodeSelector: {matchLabels: {gw: a}}}")}
		})
	}},
	{"nodes", 2048, func(from, to int) []string {
		return boundEach(from, to, func(i int) []string { return []string{boundNode(i+10, "a: b")} })
	}},
}

type seen map[uintptr]bool

func (s seen) count(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Map:
		if v.IsNil() || s[v.Pointer()] {
			return 0
		}
		s[v.Pointer()] = true
		if v.Kind() == reflect.Pointer {
			return s.count(v.Elem())
		}
		for it := v.MapRange(); it.Next(); {
			n += 1 + s.count(it.Key()) + s.count(it.Value())
		}
	case reflect.Interface:
		if !v.IsNil() {
			return s.count(v.Elem())
		}
	case reflect.Slice:
		if v.IsNil() || s[v.Pointer()] {
			return 0
		}
		s[v.Pointer()] = true
		n = v.Len()
		if k := v.Type().Elem().Kind(); k < reflect.Array {
			return n
		}
		for i := range v.Len() {
			n += s.count(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += s.count(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			n += s.count(v.Index(i))
		}
	}
	return n
}

func TestBoundExplore(t *testing.T) {
	for _, g := range growths {
		t.Run(g.name, func(t *testing.T) {
			if os.Getenv("ONLY") != "" && !strings.Contains(g.name, os.Getenv("ONLY")) {
				t.Skip()
			}
			begin := time.Now()
			c := newCluster(t, boundFlags)
			c.log = hiveLog(t)
			require.NoError(t, c.api.Sync())
			apply := func(manifests ...string) {
				require.NoError(t, c.api.Apply([]byte(strings.Join(manifests, "\n---\n"))))
			}
			apply(boundNode(1, "gw: a"), boundNode(2, "gw: b"), "{apiVersion: v1, kind: Namespace, metadata: {name: tenant}}", "{apiVersion: v1, kind: Namespace, metadata: {name: other}}",
				boundPod("other", "web", "node-1", 1<<17+1, "app: web"), boundPod("other", "client", "node-2", 1<<17+2, "app: client"))
			require.NoError(t, c.hive.Start(hiveLog(t), t.Context()))
			c.log = hiveLog(t)
			require.NoError(t, c.quiet(t.Context()))
			derived := map[string]bool{}
			isderived := func() {
				for _, e := range c.graph().Edges {
					derived[e.To] = derived[e.To] || e.By == "derive"
				}
			}
			isderived()
			for n := 64; n <= g.most; n *= 2 {
				from := n / 2
				if n == 64 {
					from = 0
				}
				apply(g.grow(from, n)...)
				c.stable()
				txn := c.oracle.DB.ReadTxn()
				rows, base, elems := 0, 0, 0
				s := seen{}
				text := ""
				for _, tb := range c.oracle.DB.GetTables(txn) {
					k := tb.NumObjects(txn)
					isd := derived[tb.Name()] || strings.HasPrefix(tb.Name(), "map-")
					e := 0
					if tb.Name() != "health" && (isd || k > 10) {
						before := len(s)
						all := statedb.AnyTable{Meta: tb}.All(txn)
						for row, _ := range all {
							e += s.count(reflect.ValueOf(row))
						}
						_ = before
					}
					if isd {
						rows += k
						elems += e
					} else if k > 10 {
						base += k
					}
					if k > 10 || e > 1000 {
						text += fmt.Sprintf(" %s=%d", tb.Name(), k)
						if e > 10*k {
							text += fmt.Sprintf("(%d)", e)
						}
					}
				}
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				fmt.Printf("%s %d: base=%d rows=%d elements=%d heap=%dMB %.1fs:%s\n", g.name, n, base, rows, elems, m.HeapAlloc>>20, time.Since(begin).Seconds(), text)
			}
			apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: small, namespace: other}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}]}}")
			c.stable()
			time.Sleep(time.Second)
			txn := c.oracle.DB.ReadTxn()
			for _, p := range []policytest.Packet{
				{Subject: netip.MustParseAddr("10.3.0.1"), Peer: netip.MustParseAddr("10.3.0.2"), Direction: bpf.DirectionIngress, Protocol: 6, Port: 80},
				{Subject: netip.MustParseAddr("10.3.0.1"), Peer: netip.MustParseAddr("10.3.0.2"), Direction: bpf.DirectionIngress, Protocol: 6, Port: 81},
				{Subject: netip.MustParseAddr("10.3.0.1"), Peer: netip.MustParseAddr("10.1.0.1"), Direction: bpf.DirectionIngress, Protocol: 6, Port: 80},
			} {
				c.memory.Read(func(r bpf.Reader) {
					got, _ := policyInKernel(r, p, true)
					fmt.Println("  ", p, got)
				})
			}
			for _, name := range []string{"network-policy-status", "egress-policy-status", "policy-usage", "health"} {
				all := statedb.AnyTable{Meta: c.table(name)}.All(txn)
				said := map[string]bool{}
				for row, _ := range all {
					if h, is := row.(*tables.Health); is && h.Level == "OK" {
						continue
					}
					text := strings.Join(row.(statedb.TableWritable).TableRow(), " | ")
					if len(text) > 300 {
						text = text[:300]
					}
					if len(said) < 4 || strings.Contains(text, "small") {
						fmt.Println("  ", name, text)
					}
					said[text] = true
				}
			}
		})
	}
}

func (c *cluster) stable() {
	last, same := 0, 0
	for range 2000 {
		txn := c.oracle.DB.ReadTxn()
		n := 0
		for _, tb := range c.oracle.DB.GetTables(txn) {
			if tb.Name() != "health" {
				n += tb.NumObjects(txn)
			}
		}
		if n == last && c.api.Pending() == "" {
			same++
		} else {
			same = 0
		}
		last = n
		if same > 20 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("not stable")
}

func hiveLog(t *testing.T) *slog.Logger { return hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1)) }
