// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// world is what the API server and the kernel say at one moment, read anew and
// with no code of the agent's.
type world struct {
	nodes      []node
	namespaces map[string]labels.Set
	endpoints  []endpoint
	services   []netip.Addr
	apiServers []netip.Addr // backends of the service of the API server
	cilium     []ciliumNode
	policies   []policy // the one that wins a conflict first
	net        *network
}

type node struct {
	name             string
	labels           labels.Set
	ready            bool
	internal, others []netip.Addr
	podCIDRs         []netip.Prefix
}

type endpoint struct {
	name, namespace, node string
	labels                labels.Set
	addrs                 []netip.Addr
	created               time.Time
}

type ciliumNode struct {
	name  string
	addrs []netip.Addr
}

type policy struct {
	name     string
	created  time.Time
	selects  []selector
	to, not  []netip.Prefix
	gateways []gateway
}

// selector holds if all that is not nil does.
type selector struct{ namespaces, pods, nodes labels.Selector }

type gateway struct {
	nodes labels.Selector // nil: the item is invalid
	via   string
	ip    netip.Addr
}

func (g gateway) String() string { return fmt.Sprintf("%v by %q as %s", g.nodes, g.via, g.ip) }

// load reads the world. With inCilium the endpoints are those that Cilium tells.
func load(ctx context.Context, c *cluster.Cluster, inCilium bool) (*world, error) {
	w := &world{namespaces: map[string]labels.Set{}}
	var errs [6]error
	errs[0] = w.loadCore(ctx, c)
	errs[1] = w.loadServices(ctx, c)
	errs[2] = w.loadPolicies(ctx, c)
	if inCilium {
		errs[3] = w.loadCilium(ctx, c)
	} else {
		errs[4] = w.loadPods(ctx, c)
	}
	w.net, errs[5] = loadNetwork()
	return w, errors.Join(errs[:]...)
}

func (w *world) loadCore(ctx context.Context, c *cluster.Cluster) error {
	namespaces, err := c.Client().CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range namespaces.Items {
		w.namespaces[n.Name] = n.Labels
	}
	nodes, err := c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, object := range nodes.Items {
		n := node{name: object.Name, labels: object.Labels}
		for _, condition := range object.Status.Conditions {
			n.ready = n.ready || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		}
		for _, a := range object.Status.Addresses {
			switch a.Type {
			case corev1.NodeInternalIP:
				n.internal = append(n.internal, addrs(a.Address)...)
			case corev1.NodeExternalIP:
				n.others = append(n.others, addrs(a.Address)...)
			}
		}
		n.podCIDRs = prefixes(object.Spec.PodCIDRs)
		w.nodes = append(w.nodes, n)
	}
	return nil
}

func (w *world) loadServices(ctx context.Context, c *cluster.Cluster) error {
	services, err := c.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range services.Items {
		w.services = append(w.services, addrs(s.Spec.ClusterIPs...)...)
	}
	slices, err := c.Client().DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=kubernetes",
	})
	if err != nil {
		return err
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			w.apiServers = append(w.apiServers, addrs(e.Addresses...)...)
		}
	}
	return nil
}

func (w *world) loadPods(ctx context.Context, c *cluster.Cluster) error {
	pods, err := c.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		e := endpoint{
			name: p.Name, namespace: p.Namespace, node: p.Spec.NodeName, labels: p.Labels, created: p.CreationTimestamp.Time,
		}
		for _, ip := range p.Status.PodIPs {
			e.addrs = append(e.addrs, addrs(ip.IP)...)
		}
		w.endpoints = append(w.endpoints, e)
	}
	return nil
}

// policyObject is what a test needs of a CiliumEgressGatewayPolicy.
type policyObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selectors []struct {
			NamespaceSelector, PodSelector, NodeSelector *metav1.LabelSelector
		}
		DestinationCIDRs, ExcludedCIDRs []string
		EgressGateway                   *gatewayObject
		EgressGateways                  []gatewayObject
	}
}

type gatewayObject struct {
	NodeSelector        *metav1.LabelSelector
	Interface, EgressIP string
}

var policyResource = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumegressgatewaypolicies"}

func (w *world) loadPolicies(ctx context.Context, c *cluster.Cluster) error {
	objects, err := list[policyObject](ctx, c, policyResource)
	if err != nil {
		return err
	}
	for _, o := range objects {
		p := policy{name: o.Name, created: o.CreationTimestamp.Time, to: prefixes(o.Spec.DestinationCIDRs), not: prefixes(o.Spec.ExcludedCIDRs)}
		for _, s := range o.Spec.Selectors {
			namespaces, err1 := metav1.LabelSelectorAsSelector(orEverything(s.NamespaceSelector))
			pods, err2 := metav1.LabelSelectorAsSelector(orEverything(withoutSources(s.PodSelector)))
			nodes, err3 := metav1.LabelSelectorAsSelector(orEverything(withoutSources(s.NodeSelector)))
			if errors.Join(err1, err2, err3) == nil && (s.NamespaceSelector != nil || s.PodSelector != nil) {
				p.selects = append(p.selects, selector{namespaces, pods, nodes})
			}
		}
		items := o.Spec.EgressGateways
		if len(items) == 0 && o.Spec.EgressGateway != nil {
			items = []gatewayObject{*o.Spec.EgressGateway}
		}
		for _, item := range items {
			p.gateways = append(p.gateways, item.gateway())
		}
		w.policies = append(w.policies, p)
	}
	slices.SortFunc(w.policies, func(a, b policy) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name, b.name))
	})
	return nil
}

func (o gatewayObject) gateway() gateway {
	g := gateway{via: o.Interface}
	nodes, err := metav1.LabelSelectorAsSelector(withoutSources(o.NodeSelector))
	if o.NodeSelector == nil || err != nil {
		return g
	}
	if o.EgressIP != "" {
		if g.ip, err = netip.ParseAddr(o.EgressIP); err != nil || g.via != "" {
			return g
		}
	}
	g.nodes = nodes
	return g
}

// withoutSources takes the source of labels, which Cilium allows, from the keys.
func withoutSources(s *metav1.LabelSelector) *metav1.LabelSelector {
	text, _ := json.Marshal(s)
	var out *metav1.LabelSelector
	if err := json.Unmarshal(labelSources.ReplaceAll(text, []byte(`"`)), &out); err != nil {
		panic(err)
	}
	return out
}

var labelSources = regexp.MustCompile(`"(k8s|any):`)

func orEverything(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return &metav1.LabelSelector{}
	}
	return s
}

// list reads the objects of a CRD; none if the API server does not serve it.
func list[T any](ctx context.Context, c *cluster.Cluster, resource schema.GroupVersionResource) ([]T, error) {
	objects, err := c.Dynamic().Resource(resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	decoded := make([]T, len(objects.Items))
	for i, o := range objects.Items {
		text, err := o.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(text, &decoded[i])
		}
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", o.GetName(), err)
		}
	}
	return decoded, nil
}

// addrs and prefixes return those of some texts that parse.
func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

func prefixes(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
