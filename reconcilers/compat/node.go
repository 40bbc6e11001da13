// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// node is where other datapaths leave their traces.
type node struct {
	bpffs        []string // BPF file systems
	ciliumSocket string   // of the API of Cilium's agent
}

// pinDir is where both Cilium and Calico pin their maps, under bpffs.
const pinDir = "tc/globals"

// incompatible are the datapaths beside which nothing can be enforced, each with
// what the names of the maps begin with that it pins only if it is in use.
//
// Cilium creates the maps of its egress gateway when that is on. Calico's felix
// pins maps called cali_ for its eBPF dataplane and removes them when it is back
// to another; those of its XDP filters are called calico_.
var incompatible = []struct{ pins, reason string }{
	{
		"cilium_egress_gw_policy",
		"Cilium's egress gateway is on and obeys the same policies: set egressGateway.enabled=false in Cilium, " +
			"which leaves its maps until they are removed or the node is booted",
	},
	{
		"cali_",
		"Calico's eBPF dataplane is on and bypasses the hooks: use its iptables or nftables dataplane",
	},
}

// ciliumPins begins the names of all maps of Cilium.
const ciliumPins = "cilium_"

// verdict is what the other datapaths of a node mean for the agent.
type verdict struct {
	refused  []string // why nothing can be enforced
	doubtful []string // what may keep the agent from enforcing
}

// judge looks at the node.
func (n *node) judge(ctx context.Context) (v verdict) {
	pins, err := n.pins()
	if err != nil {
		v.doubtful = append(v.doubtful, "Cannot tell which other datapaths run here: "+err.Error())
	}
	for _, other := range incompatible {
		if pin := find(pins, other.pins); pin != "" {
			v.refused = append(v.refused, fmt.Sprintf("%s (found %s)", other.reason, pin))
		}
	}
	if find(pins, ciliumPins) != "" {
		v.judgeHostRouting(ctx, n.ciliumSocket)
	}
	return v
}

// judgeHostRouting is about a node of which Cilium runs the network. Pins do not
// tell how it forwards.
func (v *verdict) judgeHostRouting(ctx context.Context, socket string) {
	const wanted = "set bpf.hostLegacyRouting=true in Cilium"
	switch bypasses, err := hostRouting(ctx, socket); {
	case err != nil:
		v.doubtful = append(v.doubtful, fmt.Sprintf(
			"Cilium runs here, and with its host routing on it bypasses the hooks: %s (cannot ask it: %v)", wanted, err))
	case bypasses:
		v.refused = append(v.refused, "Cilium's host routing is on and bypasses the hooks: "+wanted)
	}
}

// pins returns the paths of what others have pinned, as far as it can be read.
func (n *node) pins() (paths []string, err error) {
	for _, bpffs := range slices.Compact(n.bpffs) {
		dir := filepath.Join(bpffs, pinDir)
		entries, e := os.ReadDir(dir)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("list pinned maps: %w", e))
		}
		for _, entry := range entries {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

// find returns the first path of a file whose name begins with a prefix, empty
// if there is none.
func find(paths []string, prefix string) string {
	i := slices.IndexFunc(paths, func(p string) bool { return strings.HasPrefix(filepath.Base(p), prefix) })
	if i < 0 {
		return ""
	}
	return paths[i]
}
