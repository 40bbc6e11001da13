// SPDX-License-Identifier: Apache-2.0

package ctmap_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packageDirs are the directories of the packages that the table names; names
// without package are of this one.
var packageDirs = map[string]string{
	"ctmap": ".", "natmap": "../natmap", "percluster": "percluster", "gc": "../gc", "bpf": "..",
	"datapath": "../datapath", "ctgc": "../../reconcilers/ctgc",
}

var (
	counterpartRow  = regexp.MustCompile(`^\t(.{41}) (\S.*)$`)
	counterpartName = regexp.MustCompile(`^\w+(\.\w+)*$`)
)

// Each counterpart in the table exists.
func TestCounterpartsExist(t *testing.T) {
	src, err := os.ReadFile("doc_counterparts.go")
	require.NoError(t, err)
	parsed, err := parser.ParseFile(token.NewFileSet(), "doc_counterparts.go", src, parser.ParseComments)
	require.NoError(t, err)
	packages := map[string]*declarations{}
	for name, dir := range packageDirs {
		packages[name] = declarationsOf(t, name, dir)
	}
	names := 0
	for line := range strings.Lines(parsed.Doc.Text()) {
		m := counterpartRow.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			require.False(t, strings.HasPrefix(line, "\t"), "a row that cannot be read: %q", line)
			continue
		}
		if m[2] == "here" || strings.HasPrefix(m[2], "- ") {
			continue
		}
		list, _, _ := strings.Cut(m[2], " (")
		for name := range strings.SplitSeq(list, ", ") {
			require.Regexp(t, counterpartName, name, line)
			require.True(t, exists(packages, name), "%s does not exist, but is the counterpart of %s", name, m[1])
			names++
		}
	}
	require.Greater(t, names, 100)
	for _, name := range []string{"Nothing", "Tuple.Nothing", "gc.Nothing", "natmap.Map.Nothing", "nothing.Map"} {
		require.False(t, exists(packages, name), name)
	}
}

// exists reports whether a name, with the package before it if that is another
// than ctmap, is declared.
func exists(packages map[string]*declarations, name string) bool {
	first, rest, _ := strings.Cut(name, ".")
	p, in := packages[first], rest
	if p == nil {
		p, in = packages["ctmap"], name
	}
	typ, member, isMember := strings.Cut(in, ".")
	if !isMember {
		return p.names[in]
	}
	if p.names[in] {
		return true
	}
	for _, embedded := range p.embedded[typ] {
		if exists(packages, embedded+"."+member) {
			return true
		}
	}
	return false
}

// declarations are the exported names of a package: functions, types, variables,
// constants, and "Type.Member" for methods and fields. embedded are the types
// that others have in them, with their package.
type declarations struct {
	names    map[string]bool
	embedded map[string][]string
}

func declarationsOf(t *testing.T, name, dir string) *declarations {
	d := &declarations{map[string]bool{}, map[string][]string{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.NoError(t, err)
		require.Equal(t, name, parsed.Name.Name)
		for _, decl := range parsed.Decls {
			d.add(name, decl)
		}
	}
	require.NotEmpty(t, d.names, name)
	return d
}

func (d *declarations) add(pkg string, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		name := decl.Name.Name
		if decl.Recv != nil {
			name = typeName(pkg, decl.Recv.List[0].Type)
			name = name[strings.LastIndex(name, ".")+1:] + "." + decl.Name.Name
		}
		d.names[name] = true
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, ident := range spec.Names {
					d.names[ident.Name] = true
				}
			case *ast.TypeSpec:
				d.names[spec.Name.Name] = true
				switch typ := spec.Type.(type) {
				case *ast.StructType:
					d.addMembers(pkg, spec.Name.Name, typ.Fields)
				case *ast.InterfaceType:
					d.addMembers(pkg, spec.Name.Name, typ.Methods)
				}
			}
		}
	}
}

func (d *declarations) addMembers(pkg, typ string, members *ast.FieldList) {
	for _, member := range members.List {
		for _, ident := range member.Names {
			d.names[typ+"."+ident.Name] = true
		}
		if name := typeName(pkg, member.Type); len(member.Names) == 0 && name != "" {
			d.embedded[typ] = append(d.embedded[typ], name)
		}
	}
}

// typeName returns the name of a type with its package, without pointer and type
// parameters.
func typeName(pkg string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(pkg, e.X)
	case *ast.IndexExpr:
		return typeName(pkg, e.X)
	case *ast.IndexListExpr:
		return typeName(pkg, e.X)
	case *ast.SelectorExpr:
		return typeName(pkg, e.X)[len(pkg)+1:] + "." + e.Sel.Name
	case *ast.Ident:
		return pkg + "." + e.Name
	}
	return ""
}
