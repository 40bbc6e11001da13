// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"iter"
	"strings"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// electNode returns the node that a selector elects, among nodes in order of name: the first that
// is ready, has an address, and that nothing is said against. The choice says whether this node is
// a candidate; avoided, whether a node was passed over for what is said against it.
func electNode(
	nodes iter.Seq2[*tables.Node, statedb.Revision], selects, localNode string,
	against func(*tables.Node) string,
) (choice tables.GatewayChoice, avoided bool) {
	selector, err := labels.Parse(selects)
	if err != nil {
		choice.Reason = err.Error()
		return choice, false
	}
	var refused []string
	for n := range nodes {
		if !selector.Matches(n.Labels) {
			continue
		}
		choice.Local = choice.Local || n.Name == localNode
		switch addr := n.UnderlayIP(); {
		case choice.Node != "":
		case !n.Ready:
			refused = append(refused, n.Name+" is not ready")
		case !addr.IsValid():
			refused = append(refused, n.Name+" has no internal address")
		default:
			if reason := against(n); reason != "" {
				avoided = true
				refused = append(refused, n.Name+" "+reason)
				continue
			}
			choice.Node, choice.Addr = n.Name, addr
		}
	}
	if choice.Node == "" {
		choice.Reason = "no node matches"
		if len(refused) > 0 {
			choice.Reason = strings.Join(refused, ", ")
		}
	}
	return choice, avoided
}
