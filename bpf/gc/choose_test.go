// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A nearly empty map is read by keys, however large it is.
func TestChoose(t *testing.T) {
	for _, test := range []struct {
		entries int
		room    uint32
		want    Method
	}{
		{1, 1, Iterator},
		{1, 4096, Keys},
		{32, 32768, Iterator},
		{16, 524288, Keys},
		{523, 524288, Keys},
		{524, 524288, Iterator},
		{524288, 524288, Iterator},
		{1024, 1 << 22, Keys},
	} {
		require.Equal(t, test.want, choose(test.entries, test.room), "%d of %d", test.entries, test.room)
	}
}
