// SPDX-License-Identifier: Apache-2.0

package columns

import (
	"regexp"
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

var escapes = regexp.MustCompile("\x1b\\[[0-9]*m")

// Colors take no room: without them the lines are those that there were.
func TestWriterColors(t *testing.T) {
	rows := [][]string{
		{"Name", "Status", "Failed", "Pressure", "Error"},
		{"a", "Done", "0", "79.9%", "-"},
		{"bb", "Pending", "3", "80.0%", "waits"},
		{"Error", "Error", "-", "95.0 %", ""},
	}
	write := func(color bool) string {
		var b strings.Builder
		w := NewWriter(&b)
		w.Color = color
		require.NoError(t, w.Write(rows[0]))
		require.NoError(t, w.Write(rows[1:]...))
		return b.String()
	}
	colored := write(true)
	require.Equal(t, write(false), escapes.ReplaceAllString(colored, ""))
	lines := strings.Split(colored, "\n")
	require.NotContains(t, lines[0], "\x1b", "the names of columns are no states")
	require.Contains(t, lines[1], Good.Paint("Done"))
	require.Equal(t, 1, strings.Count(lines[1], reset))
	for _, want := range []string{Warn.Paint("Pending"), Bad.Paint("3"), Warn.Paint("80.0%"), Bad.Paint("waits")} {
		require.Contains(t, lines[2], want)
	}
	require.Contains(t, lines[3], "Error ", "a name is no state")
	require.Contains(t, lines[3], Bad.Paint("Error"))
	require.Contains(t, lines[3], Bad.Paint("95.0 %"))
}

// What comes from objects of the cluster cannot steer the terminal.
func TestWriterControlCharacters(t *testing.T) {
	var b strings.Builder
	require.NoError(t, NewWriter(&b).Write([]string{"a\x1b[2Jb", "\u009b1m", "x\r\ny"}))
	require.Equal(t, "a\uFFFD[2Jb   \uFFFD1m   x  y\n", b.String())
}

func TestPaintVerdict(t *testing.T) {
	require.Equal(t, "\x1b[31mDENIED:\x1b[0m by rule DENIED", PaintVerdict("DENIED: by rule DENIED"))
	require.Equal(t, "10:00:00 \x1b[31mDROP\x1b[0m policy denied", PaintVerdict("10:00:00 DROP policy denied"))
	require.Equal(t, "10:00:00 FLOW passed", PaintVerdict("10:00:00 FLOW passed"))
}

func TestMeasure(t *testing.T) {
	var b strings.Builder
	w := NewWriter(&b)
	w.Measure([]string{"longer", "x"})
	require.NoError(t, w.Write([]string{"a", "b"}))
	require.Equal(t, "a        b\n", b.String())
}
