// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A look-up finds what the programs find, in both back ends.
func TestLookup(t *testing.T) {
	kernel := testKernel(t, testBPFFS(t))
	defer kernel.Close()
	for _, backend := range []Backend{NewMemory(), kernel} {
		t.Run(backend.Name(), func(t *testing.T) {
			h := &handle[prefix, value]{spec: Spec{"lookup_lpm", TypeLPM, 8}}
			_, _, err := Lookup[prefix, value](h, prefix{})
			require.ErrorIs(t, err, ErrNotOpen)
			require.NoError(t, h.open(backend))
			_, err = h.Update([]prefix{{8, [4]byte{10}}, {16, [4]byte{10, 1}}}, []value{{1, 0}, {2, 0}})
			require.NoError(t, err)
			for _, tc := range []struct {
				key   prefix
				value uint32 // 0: none
			}{
				{prefix{32, [4]byte{10, 1, 2, 3}}, 2}, {prefix{32, [4]byte{10, 2}}, 1}, {prefix{12, [4]byte{10, 1}}, 1}, {prefix{32, [4]byte{11}}, 0},
			} {
				v, found, err := Lookup[prefix, value](h, tc.key)
				require.NoError(t, err)
				require.Equal(t, tc.value != 0, found, tc.key)
				require.Equal(t, tc.value, v.A, tc.key)
			}
			array := &handle[uint32, value]{spec: Spec{"lookup_array", TypeArray, 2}}
			require.NoError(t, array.open(backend))
			_, found, err := Lookup[uint32, value](array, 1)
			require.NoError(t, err)
			require.False(t, found, "an entry of an array that was not written is none")
		})
	}
}
