// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// LocalNode is the node that runs most pods of a [Generator].
const LocalNode = "node-0"

// Generator generates objects of a small cluster, as manifests. Names, labels, addresses and ports
// are few, so that objects match each other often.
type Generator struct{ *rand.Rand }

// NewGenerator returns a generator that generates the same objects for the same seed.
func NewGenerator(seed uint64) *Generator { return &Generator{rand.New(rand.NewPCG(seed, 5))} }

// Kind is a kind of change that invariants distinguish.
type Kind string

// The kinds of changes.
const (
	KindPod       Kind = "pod"
	KindPolicy    Kind = "policy"
	KindNamespace Kind = "namespace"
	KindNode      Kind = "node"
	KindGroup     Kind = "group"
	KindService   Kind = "service"
)

// Change is an object that is applied, or deleted if it exists.
type Change struct {
	Kind     Kind
	Delete   bool
	Manifest string
}

func (c Change) String() string {
	if c.Delete {
		return "delete" + c.Manifest
	}
	return "apply" + c.Manifest
}

// Change generates one change. The local node is never deleted.
func (g *Generator) Change() Change {
	c := Change{Delete: g.IntN(4) == 0}
	switch g.IntN(16) {
	case 0, 1, 2, 3, 4:
		c.Kind, c.Manifest = KindPod, g.Pod()
	case 5, 6, 7, 8, 9:
		c.Kind, c.Manifest = KindPolicy, g.Policy()
	case 10, 11:
		c.Kind, c.Manifest = KindNamespace, g.Namespace()
	case 12:
		n := g.IntN(3)
		c.Kind, c.Manifest = KindNode, g.Node(n)
		c.Delete = c.Delete && n > 0
	case 13:
		c.Kind, c.Manifest = KindGroup, g.Group()
	case 14:
		c.Kind, c.Manifest = KindService, g.Service()
	default:
		c.Kind, c.Manifest = KindService, g.Backends()
	}
	return c
}

// World generates the objects of a whole cluster.
func (g *Generator) World(pods, policies int) (manifests []string) {
	for n := range 3 {
		manifests = append(manifests, g.Node(n), g.Namespace())
	}
	for range 3 {
		manifests = append(manifests, g.Group(), g.Service(), g.Backends())
	}
	for range pods {
		manifests = append(manifests, g.Pod())
	}
	for range policies {
		manifests = append(manifests, g.Policy())
	}
	return manifests
}

func (g *Generator) pick(options ...string) string { return options[g.IntN(len(options))] }

// some returns atLeast to atLeast+2 of the options.
func (g *Generator) some(atLeast int, options func() string) string {
	var picked []string
	for range atLeast + g.IntN(3) {
		picked = append(picked, options())
	}
	return strings.Join(picked, ", ")
}

// pods is the number of possible pods. Half are of this node.
const pods = 12

// Pod generates a pod. Its node and its first address depend on its name, but sometimes it claims
// an address that another pod may have.
func (g *Generator) Pod() string {
	n := g.IntN(pods)
	node := []int{0, 0, 1, 0, 2, 1}[n%6]
	host := 1 + n
	if g.IntN(8) == 0 {
		host++
	}
	ips := fmt.Sprintf("{ip: 10.0.%d.%d}, {ip: \"fd00:0:%d::%d\"}", node, host, node, host)
	if n%5 == 4 { // outside of the nodes' prefixes
		ips = fmt.Sprintf("{ip: 172.20.0.%d}", host)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: pod-%d, namespace: ns-%d, labels: {app: %s, tier: %s, color: %s}}
spec: {nodeName: node-%d, serviceAccountName: %s, containers: [{name: c, ports: [%s]}]}
status: {phase: %s, podIPs: [%s]}
`, n, n%3, g.pick("web", "db", "api"), g.pick("front", "back"), g.pick("red", "green", "blue"), node, g.pick("default", "default", "robot"),
		g.pick("", "{name: http, containerPort: 80}", "{name: http, containerPort: 8080}",
			"{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}",
			"{name: dns, containerPort: 53, protocol: UDP}",
			"{name: unused, containerPort: 9999}"),
		g.pick("Running", "Running", "Running", "Running", "Failed"), ips)
}

// Namespace generates a namespace.
func (g *Generator) Namespace() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: ns-%d, labels: {team: %s}}
`, g.IntN(3), g.pick("blue", "red"))
}

// Node generates a node.
func (g *Generator) Node(n int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-%d, labels: {zone: %s, disk: %s}}
spec: {podCIDRs: [10.0.%d.0/24, "fd00:0:%d::/64"]}
status:
  addresses: [{type: InternalIP, address: 192.168.0.%d}, {type: InternalIP, address: "fd01::%d"}]
  conditions: [{type: Ready, status: "True"}]
`, n, g.pick("a", "b"), g.pick("ssd", "hdd"), n, n, n+1, n+1)
}

// Group generates a group of prefixes.
func (g *Generator) Group() string {
	return fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumCIDRGroup
metadata: {name: group-%d, labels: {site: %s}}
spec: {externalCIDRs: [%s]}
`, g.IntN(2), g.pick("a", "b"), g.some(0, g.prefix))
}

// Service generates a service that selects pods or not.
func (g *Generator) Service() string {
	switch name := g.pick("kubernetes", "plain", "other", "pods-0", "pods-1"); name {
	case "kubernetes":
		return g.service("name: kubernetes, namespace: default", "")
	case "plain":
		return g.service("name: plain, namespace: ns-0", "")
	case "other":
		return g.service(
			"name: other, namespace: ns-1",
			g.pick("", "selector: {app: db}", "selector: {pod-template-hash: x}"),
		)
	default:
		selector := "selector: {" + g.pick(
			"app: web", "tier: back", "app: api, tier: front", "app: web, pod-template-hash: x",
		) + "}"
		return g.service(fmt.Sprintf("name: %s, namespace: ns-%d", name, g.IntN(3)), selector)
	}
}

func (g *Generator) service(metadata, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {%s, labels: {use: %s}}
spec: {%s}
`, metadata, g.pick("shop", "bank"), spec)
}

// Backends generates some backends of a service that may select no pods.
func (g *Generator) Backends() string {
	service := g.pick(
		"name: kubernetes, namespace: default", "name: plain, namespace: ns-0",
		"name: other, namespace: ns-1",
	)
	name, _, _ := strings.Cut(strings.TrimPrefix(service, "name: "), ",")
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {%s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
endpoints: [%s]
`, service, name, g.some(0, func() string {
		return "{addresses: [\"" + g.pick(
			"203.0.113.9", "198.51.100.7", "192.168.0.1", "192.168.0.2", "10.0.0.1", "10.0.1.3",
			"2001:db8::9",
		) + "\"]}"
	}))
}

// prefix generates a prefix. Prefixes nest, and some contain pods or nodes.
func (g *Generator) prefix() string {
	return g.pick("0.0.0.0/0", "\"::/0\"", "10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/25", "10.0.1.3/32",
		"10.0.0.2/31", "172.20.0.0/16", "203.0.113.0/24",
		"203.0.113.128/25", "198.51.100.7/32", "192.168.0.0/24", "192.168.0.2/32", "\"2001:db8::/32\"", "\"2001:db8::8/125\"", "\"fd00::/16\"", "\"fd00:0:1::/64\"")
}

// prefixAndExcept generates a prefix with exceptions inside it.
func (g *Generator) prefixAndExcept() string {
	return g.pick(
		"cidr: 0.0.0.0/0, except: [10.0.0.0/8, 203.0.113.0/25]",
		"cidr: 10.0.0.0/8, except: [10.0.1.0/24]", "cidr: 203.0.113.0/24, except: [203.0.113.128/25]",
		"cidr: 192.168.0.0/16, except: [192.168.0.2/32, 192.168.0.3/32]",
		"cidr: \"::/0\", except: [\"2001:db8::/32\"]", "cidr: \"fd00::/8\", except: [\"fd00:0:1::/64\"]",
		"cidr: 10.0.0.0/24, except: [10.0.0.2/31]", "cidr: "+g.prefix())
}
