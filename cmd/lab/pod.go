// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
)

// Addresses of the host to a routed pod, the same for each, as with Calico.
var (
	hostForPods4 = netip.MustParseAddr("169.254.1.1")
	hostForPods6 = netip.MustParseAddr("fe80::1")
)

// buildAtOnce is how many pods are built at the same time.
const buildAtOnce = 8

// PodSpec says what a pod is.
type PodSpec struct {
	Node      *Node
	Namespace string // "default" if empty
	Name      string
	Labels    map[string]string
	Ports     map[string]uint16 // of its container, TCP, by name
	IPv4      netip.Addr        // the next of the node if invalid
	IPv6      netip.Addr
}

// Pod is a pod: a network namespace, connected to its node.
type Pod struct {
	*Namespace // its name is that of the pod, with its Kubernetes namespace

	Spec       PodSpec // complete
	Node       *Node
	IPv4, IPv6 netip.Addr
	HostDevice string // the node's end of its veth

	cluster *Cluster
	server  *server // nil unless it serves
}

// Serve has the pod answer on [Port], as the world does, until it is closed.
func (p *Pod) Serve() (err error) {
	p.server, err = startServer(p.Namespace)
	return err
}

// AddPod connects a pod and tells the agents of it.
func (c *Cluster) AddPod(node *Node, name string, labels map[string]string) (*Pod, error) {
	pods, err := c.AddPods(PodSpec{Node: node, Name: name, Labels: labels})
	if err != nil {
		return nil, err
	}
	return pods[0], nil
}

// AddPods connects pods and tells the agents of all of them afterwards.
func (c *Cluster) AddPods(specs ...PodSpec) ([]*Pod, error) {
	pods, err := c.ConnectPods(specs...)
	if err != nil {
		return nil, err
	}
	objects := make([]Object, len(pods))
	for i, p := range pods {
		objects[i] = p.Object()
	}
	return pods, c.Apply(objects...)
}

// ConnectPods connects pods of which the agents learn nothing until their
// objects are applied.
func (c *Cluster) ConnectPods(specs ...PodSpec) ([]*Pod, error) {
	var (
		pods  = make([]*Pod, len(specs))
		errs  = make([]error, len(specs))
		slots = make(chan struct{}, buildAtOnce)
		all   sync.WaitGroup
	)
	for i, spec := range specs {
		p := c.newPod(spec)
		pods[i] = p
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = p.connect()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, p := range pods {
			p.Close()
		}
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pods {
		c.pods[p] = true
	}
	return pods, nil
}

// newPod completes what a pod is to be.
func (c *Cluster) newPod(spec PodSpec) *Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	number := spec.Node.pods
	spec.Node.pods++
	v4, v6 := podNetworks(spec.Node.number)
	if !spec.IPv4.IsValid() {
		spec.IPv4 = hostOf(v4, podHosts+number)
	}
	if !spec.IPv6.IsValid() {
		spec.IPv6 = hostOf(v6, podHosts+number)
	}
	if spec.Namespace == "" {
		spec.Namespace = "default"
	}
	return &Pod{
		Spec: spec, Node: spec.Node, IPv4: spec.IPv4, IPv6: spec.IPv6,
		HostDevice: "veth" + strconv.Itoa(number), cluster: c,
	}
}

func (p *Pod) connect() (err error) {
	if p.Namespace, err = newNamespace(p.Spec.Namespace + "/" + p.Spec.Name); err != nil {
		return err
	}
	if err := p.Node.addVeth(p.HostDevice, p.Namespace, PodDevice, p.cluster.options.MTU); err != nil {
		return err
	}
	if p.cluster.options.BridgeCNI {
		return p.joinBridge()
	}
	return p.route()
}

// route connects the pod by routes to just its addresses.
func (p *Pod) route() error {
	if err := p.Node.Sysctl("net.ipv4.conf."+p.HostDevice+".proxy_arp=1", "net.ipv4.neigh."+p.HostDevice+".proxy_delay=0"); err != nil {
		return err
	}
	if err := p.Node.AddAddress(p.HostDevice, netip.PrefixFrom(hostForPods6, 64)); err != nil {
		return err
	}
	if err := p.AddAddress(PodDevice, host(p.IPv4), host(p.IPv6)); err != nil {
		return err
	}
	if err := p.addRoute(host(hostForPods4), netip.Addr{}, PodDevice); err != nil {
		return err
	}
	if err := p.routeOut(hostForPods4, hostForPods6); err != nil {
		return err
	}
	for _, addr := range []netip.Addr{p.IPv4, p.IPv6} {
		if err := p.Node.addRoute(host(addr), netip.Addr{}, p.HostDevice); err != nil {
			return err
		}
	}
	return nil
}

// joinBridge makes the node's end a port of its bridge.
func (p *Pod) joinBridge() error {
	if err := p.Node.plug(p.HostDevice, bridgeDevice); err != nil {
		return err
	}
	v4, v6 := podNetworks(p.Node.number)
	if err := p.AddAddress(PodDevice, netip.PrefixFrom(p.IPv4, v4.Bits()), netip.PrefixFrom(p.IPv6, v6.Bits())); err != nil {
		return err
	}
	return p.routeOut(hostOf(v4, routerHost), hostOf(v6, routerHost))
}

func (p *Pod) routeOut(via ...netip.Addr) error {
	for _, router := range via {
		if err := p.addRoute(anywhere(router.Is6()), router, PodDevice); err != nil {
			return err
		}
	}
	return nil
}

// Close disconnects the pod, at once, and leaves its object alone.
func (p *Pod) Close() {
	if p.Namespace == nil {
		return
	}
	if p.server != nil {
		p.server.close()
	}
	if p.Node.ns.IsOpen() {
		if link, err := p.Node.link(p.HostDevice); err == nil {
			_ = p.Node.handle.LinkDel(link) // it would go with the namespace anyway
		}
	}
	p.Namespace.Close()
}

// RemovePod disconnects a pod and deletes its object.
func (c *Cluster) RemovePod(p *Pod) error {
	c.mu.Lock()
	delete(c.pods, p)
	c.mu.Unlock()
	p.Close()
	return c.Delete(p.Object())
}

// Object is the pod's manifest.
func (p *Pod) Object() Object {
	labels := map[string]any{}
	for k, v := range p.Spec.Labels {
		labels[k] = v
	}
	status := map[string]any{
		"phase": "Running", "hostIP": p.Node.Internal().String(), "podIP": p.IPv4.String(),
		"podIPs": []any{map[string]any{"ip": p.IPv4.String()}, map[string]any{"ip": p.IPv6.String()}},
	}
	spec := map[string]any{"nodeName": p.Node.Name, "serviceAccountName": "default"}
	if len(p.Spec.Ports) > 0 {
		var ports []any
		for _, name := range slices.Sorted(maps.Keys(p.Spec.Ports)) {
			ports = append(ports, map[string]any{"name": name, "containerPort": int64(p.Spec.Ports[name]), "protocol": "TCP"})
		}
		spec["containers"] = []any{map[string]any{"name": "main", "ports": ports}}
	}
	return Object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": p.Spec.Name, "namespace": p.Spec.Namespace, "labels": labels},
		"spec":     spec,
		"status":   status,
	}
}
