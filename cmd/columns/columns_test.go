// SPDX-License-Identifier: Apache-2.0

package columns

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriter(t *testing.T) {
	var b strings.Builder
	w := NewWriter(&b)
	require.NoError(t, w.Write([]string{"Name", "Status", "Error"}, []string{"é", "Done", "-"}))
	require.NoError(t, w.Write([]string{"longer-name", "Error", "two\nlines"}))
	require.NoError(t, w.Write([]string{"a", "Done", ""}))
	require.Equal(t, ""+
		"Name   Status   Error\n"+
		"é      Done     -\n"+
		"longer-name   Error    two lines\n"+
		"a             Done     \n", b.String())
}

func TestWriterCutsLongCells(t *testing.T) {
	var b strings.Builder
	w := NewWriter(&b)
	w.Longest = 5
	require.NoError(t, w.Write([]string{"Name", "Error"}, []string{"ééééé", "-"}, []string{"éééééé", "much too long"}))
	require.Equal(t, ""+
		"Name    Error\n"+
		"ééééé   -\n"+
		"éééé…   much…\n", b.String())
}
