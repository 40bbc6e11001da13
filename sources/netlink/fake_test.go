// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseStateErrors(t *testing.T) {
	for name, tt := range map[string]struct{ file, want string }{
		"unknown field":          {"devices: [{nmae: lo}]", `unknown field "nmae"`},
		"device without index":   {"devices: [{name: lo}]", `device "lo" with index 0: want both`},
		"unknown device":         {"neighbours: [{addr: 10.0.0.1, device: eth9}]", `no device ["eth9"]`},
		"bad address":            {"addresses: [{addr: 10.0.0.256}]", "10.0.0.256"},
		"address without addr":   {"addresses: [{deviceIndex: 1}]", "no addr"},
		"route to nowhere":       {"routes: [{deviceIndex: 1}]", "no destination"},
		"not the form of a file": {"[]", "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseState([]byte(tt.file))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestHoldAfterStart(t *testing.T) {
	f := NewFake()
	sub, err := f.subscribe()
	require.NoError(t, err)
	require.ErrorContains(t, f.Hold(), "has been started")
	sub.close()
	require.NoError(t, f.Hold(), "between two runs of an agent")
}
