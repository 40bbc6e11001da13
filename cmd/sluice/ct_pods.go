// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
)

// namesTimeout is for the agent to tell the names of addresses, which must not
// hold up who looks into maps because something is wrong with the agent.
const namesTimeout = 10 * time.Second

// names has the names of addresses as the agent knows them. An empty one knows none.
type names struct {
	pods  map[netip.Addr]string // namespace/name
	nodes map[netip.Addr]string
}

// askNames returns what the agent knows. Without an agent there are no names,
// which is said on stderr.
func askNames(ctx context.Context, server string, stderr io.Writer) (*names, error) {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	c, err := connect(ctx, server)
	if err == nil {
		defer c.close()
		var n *names
		if n, err = c.names(ctx); err == nil {
			return n, nil
		}
	}
	if isUsage(err) {
		return nil, err
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	fmt.Fprintf(stderr, "sluice: pods and nodes have no names here: %s\n", strings.TrimSuffix(reason, "; tried:"))
	return &names{}, nil
}

// names asks the agent for its pods and nodes.
func (c *client) names(ctx context.Context) (*names, error) {
	var endpoints map[string][]*tables.Endpoint
	if err := c.getJSON(ctx, "/statedb/dump/endpoints", &endpoints); err != nil {
		return nil, fmt.Errorf("ask for pods: %w", err)
	}
	var nodes map[string][]*tables.Node
	if err := c.getJSON(ctx, "/statedb/dump/nodes", &nodes); err != nil {
		return nil, fmt.Errorf("ask for nodes: %w", err)
	}
	n := &names{pods: map[netip.Addr]string{}, nodes: map[netip.Addr]string{}}
	owners := map[netip.Addr]*tables.Endpoint{}
	for _, rows := range endpoints {
		for _, e := range rows {
			for _, addr := range e.Addrs {
				if owner := owners[addr]; owner == nil || e.Newer(owner) {
					owners[addr], n.pods[addr] = e, e.Name.String()
				}
			}
		}
	}
	for _, rows := range nodes {
		for _, node := range rows {
			for _, addr := range slices.Concat(node.InternalIPs, node.OtherIPs) {
				n.nodes[addr] = node.Name
			}
		}
	}
	return n, nil
}

// peer returns an address and port with the name of the pod, if it has one. A
// port of 0 is none.
func (n *names) peer(p netip.AddrPort) string {
	pod := n.pods[p.Addr()]
	switch {
	case pod != "" && p.Port() == 0:
		return pod
	case pod != "":
		return pod + ":" + strconv.Itoa(int(p.Port()))
	case p.Port() == 0:
		return p.Addr().String()
	}
	return p.String()
}

// node returns the name of a node, its address if it has none, and "-" for none.
func (n *names) node(addr netip.Addr) string {
	if name := n.nodes[addr]; name != "" {
		return name
	}
	if !addr.IsValid() {
		return "-"
	}
	return addr.String()
}

// resolve returns the addresses of pods that are asked for as sluice monitor has
// it: by name, the beginning of one, address or prefix. None of them may be in vain.
func (n *names) resolve(pods []string) (addrs []string, err error) {
	for _, text := range pods {
		if isAddress(text) {
			addrs = append(addrs, text)
			continue
		}
		if n.pods == nil {
			return nil, fmt.Errorf("find pod %s: %w that knows its addresses: give them instead", text, errNoAgent)
		}
		found := n.named(text)
		if len(found) == 0 {
			return nil, fmt.Errorf("find pod %s: the agent knows none of that name", text)
		}
		addrs = append(addrs, found...)
	}
	slices.Sort(addrs)
	return slices.Compact(addrs), nil
}

// named returns the addresses of the pods whose names begin with a text. Without
// a namespace it is of any.
func (n *names) named(text string) (addrs []string) {
	for addr, pod := range n.pods {
		if !strings.Contains(text, "/") {
			_, pod, _ = strings.Cut(pod, "/")
		}
		if strings.HasPrefix(pod, text) {
			addrs = append(addrs, addr.String())
		}
	}
	return addrs
}

// checkPods returns what is wrong with the texts that pods are asked for by.
func checkPods(pods []string) error {
	for _, text := range pods {
		_, err := events.ParsePod(text)
		if err == nil && isAddress(text) {
			_, err = ctmap.ParsePrefix(text)
		}
		if err != nil {
			return agent.UsageErrorf("%w", err)
		}
	}
	return nil
}

func isAddress(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(text)
	return err == nil
}
