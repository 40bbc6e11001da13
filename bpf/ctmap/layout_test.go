// SPDX-License-Identifier: Apache-2.0

package ctmap_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// The tables of the package documentation are those of the structs: each field,
// its offset and size, and network order where it is an array of bytes.
func TestDocumentedLayouts(t *testing.T) {
	checkLayouts(t, "doc.go", ctmap.Key4{}, ctmap.Key6{}, ctmap.Entry{}, ctmap.FragKey4{}, ctmap.FragKey6{}, ctmap.FragValue{})
	checkLayouts(t, "../natmap/doc.go", natmap.Key4{}, natmap.Key6{}, natmap.Entry4{}, natmap.Entry6{})
}

var (
	layoutStart = regexp.MustCompile(`^(\w+), (\d+) bytes`)
	layoutRow   = regexp.MustCompile(`^\t +(\d+) +(\d+) (network|host|-) +(\w+) +(.+)$`)
)

// checkLayouts compares the tables of a package documentation with structs.
func checkLayouts(t *testing.T, file string, structs ...any) {
	documented := documentedLayouts(t, file)
	require.Len(t, documented, len(structs))
	for _, s := range structs {
		typ := reflect.TypeOf(s)
		rows := []string{fmt.Sprint(typ.Size(), " bytes")}
		for f := range typ.Fields() {
			rows = append(rows, fmt.Sprint(f.Offset, f.Type.Size(), " ", order(f), " ", f.Name))
		}
		require.Equal(t, rows, documented[typ.Name()], typ.Name())
	}
}

// order returns the byte order of a field: what is in network order has an array
// type, so that it is not taken for a number.
func order(f reflect.StructField) string {
	switch {
	case f.Type.Size() == 1, f.Name == "Pad", f.Name == "Reserved":
		return "-"
	case f.Type.Kind() == reflect.Array:
		return "network"
	}
	return "host"
}

func documentedLayouts(t *testing.T, file string) map[string][]string {
	src, err := os.ReadFile(file)
	require.NoError(t, err)
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ParseComments)
	require.NoError(t, err)
	layouts, name := map[string][]string{}, ""
	for line := range strings.Lines(parsed.Doc.Text()) {
		line = strings.TrimRight(line, "\n")
		if m := layoutStart.FindStringSubmatch(line); m != nil {
			name = m[1]
			layouts[name] = []string{m[2] + " bytes"}
		} else if m := layoutRow.FindStringSubmatch(line); m != nil {
			offset, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			size, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			layouts[name] = append(layouts[name], fmt.Sprint(offset, size, " ", m[3], " ", m[4]))
		}
	}
	return layouts
}
