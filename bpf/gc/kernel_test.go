// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A run of the kernel that nothing interrupts is for small maps only; in nearly
// empty ones it is the buckets that cost.
func TestChoose(t *testing.T) {
	for _, test := range []struct {
		entries int
		room    uint32
		want    Method
	}{
		{1, 1, ForEach},
		{8192, 8192, ForEach},
		{16384, 16384, Iterator},
		{16, 32768, ForEach},
		{16, 524288, Keys},
		{1024, 524288, Keys},
		{4096, 524288, Iterator},
		{524288, 524288, Iterator},
		{1024, 1 << 22, Keys},
	} {
		require.Equal(t, test.want, choose(test.entries, test.room), "%d of %d", test.entries, test.room)
	}
}
