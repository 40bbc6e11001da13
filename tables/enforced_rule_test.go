// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnforcedRuleText(t *testing.T) {
	http := []PolicyPort{{Protocol: 6, First: 80, Last: 80}}
	names := map[SelectorID]string{10: "pods(app=web)"}
	for want, r := range map[string]*EnforcedRule{
		"spec.egress: default deny":           {Field: "spec.egress", DefaultDeny: true},
		"spec.egress[0]: allow any":           {Field: "spec.egress[0]", AnyPeer: true},
		"spec.egress[0]: allow none":          {Field: "spec.egress[0]"},
		"spec.egress[0]: deny pods(app=web)":  {Field: "spec.egress[0]", Deny: true, Peers: []SelectorID{10}},
		"f: allow pods(app=web) +2 at 80/tcp": {Field: "f", Peers: []SelectorID{10, 11, 12}, Ports: http},
	} {
		require.Equal(t, want, r.text(func(id SelectorID) string { return names[id] }))
	}
}
