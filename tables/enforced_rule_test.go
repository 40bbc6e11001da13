// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnforcedRuleText(t *testing.T) {
	http := []PolicyPort{{Protocol: 6, First: 80, Last: 80}}
	for want, r := range map[string]*EnforcedRule{
		"spec.egress: default deny":              {Field: "spec.egress", DefaultDeny: true},
		"spec.egress[0]: allow any":              {Field: "spec.egress[0]", AnyPeer: true},
		"spec.egress[0]: allow none":             {Field: "spec.egress[0]"},
		"spec.egress[0]: deny 000000000000000a":  {Field: "spec.egress[0]", Deny: true, Peers: []SelectorID{10}},
		"f: allow 000000000000000a +2 at 80/tcp": {Field: "f", Peers: []SelectorID{10, 11, 12}, Ports: http},
	} {
		require.Equal(t, want, r.text())
	}
}
