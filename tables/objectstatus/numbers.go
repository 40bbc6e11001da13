// SPDX-License-Identifier: Apache-2.0

package objectstatus

// numbers are those of nodes: each has its own for as long as there is the node, and
// they are as small as may be.
type numbers struct {
	of     map[string]int
	names  []string // by number
	unused []int
}

// give has a node have a number.
func (n *numbers) give(node string) {
	if _, has := n.of[node]; has {
		return
	}
	if last := len(n.unused) - 1; last >= 0 {
		n.of[node], n.unused = n.unused[last], n.unused[:last]
		n.names[n.of[node]] = node
		return
	}
	n.of[node] = len(n.names)
	n.names = append(n.names, node)
}

// free has the number of a node be another one's.
func (n *numbers) free(node string) {
	n.unused = append(n.unused, n.of[node])
	delete(n.of, node)
}
