// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
	"github.com/sluice-net/sluice/testdata/demo"
)

// agent follows a directory until the test ends.
type agent struct {
	t      testing.TB
	db     *statedb.DB
	tables objects.Tables
	health *cell.SimpleHealth
}

func newAgent(t testing.TB, fsys fs.FS, dir string) *agent {
	t.Helper()
	db := statedb.New()
	require.NoError(t, db.Start())
	t.Cleanup(func() { require.NoError(t, db.Stop()) })
	tbls, err := objects.NewTables(db, tables.LocalNode{})
	require.NoError(t, err)
	_, health := cell.NewSimpleHealth()
	s := newSource(params{
		Reads: objects.DefaultConfig.Reads(""), DB: db, Tables: tbls,
		Log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)),
	}, fsys, dir)
	done, _ := tbls.Endpoints.Initialized(db.ReadTxn())
	require.False(t, done)

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.run(ctx, health) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })

	txn := db.ReadTxn()
	for _, table := range []statedb.TableMeta{tbls.Endpoints, tbls.Nodes, tbls.EgressPolicies, tbls.CiliumEndpoints} {
		_, initialized := table.Initialized(txn)
		<-initialized
	}
	return &agent{t, db, tbls, health}
}

func follow(t testing.TB, dir string) *agent { return newAgent(t, os.DirFS(dir), dir) }

func (a *agent) eventually(check func() error) {
	a.t.Helper()
	var err error
	deadline := time.Now().Add(await.Bound)
	for time.Now().Before(deadline) {
		if err = check(); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.NoError(a.t, err)
}

// is waits until these are all the endpoints and all the rows about files.
func (a *agent) is(endpoints string, rows ...string) {
	a.t.Helper()
	a.eventually(func() error {
		txn := a.db.ReadTxn()
		var got []string
		for e := range a.tables.Endpoints.All(txn) {
			got = append(got, e.Name.Name+e.LabelSet.Labels.Get("v"))
		}
		if s := strings.Join(got, " "); s != endpoints {
			return fmt.Errorf("endpoints are %q, not %q", s, endpoints)
		}
		got = nil
		for r := range a.tables.Sources.All(txn) {
			got = append(got, fmt.Sprintf("%s: %s %d %s", r.Source, r.State, r.Objects, r.Error))
		}
		if strings.Join(got, "\n") != strings.Join(rows, "\n") {
			return fmt.Errorf("rows are %q, not %q", got, rows)
		}
		return nil
	})
}

func (a *agent) degraded(want string) {
	a.t.Helper()
	a.eventually(func() error {
		a.health.Lock()
		defer a.health.Unlock()
		if want == "" && a.health.Level == cell.StatusOK {
			return nil
		}
		if want != "" && a.health.Error != nil && strings.Contains(a.health.Error.Error(), want) {
			return nil
		}
		return fmt.Errorf("health is %s: %v", a.health.Level, a.health.Error)
	})
}

func pod(name string) string {
	return "---\n{apiVersion: v1, kind: Pod, metadata: {name: " + name + "}}\n"
}

func podV(name, v string) string {
	return "---\n{apiVersion: v1, kind: Pod, metadata: {name: " + name + ", labels: {v: \"" + v + "\"}}}\n"
}

// write writes a file as a whole: what is written in place is read half written by
// an agent that this test does not outrun.
func write(t testing.TB, data string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	whole := filepath.Join(filepath.Dir(name), ".whole")
	writeInPlace(t, data, whole)
	require.NoError(t, os.Rename(whole, name))
}

func writeInPlace(t testing.TB, data string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(data), 0o644))
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a")+pod("b"), dir, "1.yaml")
	write(t, `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}]}`, dir, "2.json")
	write(t, "not a manifest", dir, "README.md")
	write(t, "hidden: [", dir, ".1.yaml.swp.yaml")
	a := follow(t, dir)
	a.is("a b c", "1.yaml: synced 2 ", "2.json: synced 1 ")
	a.degraded("")

	writeInPlace(t, podV("a", "1")+pod("b"), dir, "1.yaml") // changed
	a.is("a1 b c", "1.yaml: synced 2 ", "2.json: synced 1 ")
	write(t, pod("d"), dir, "3.yml") // new
	a.is("a1 b c d", "1.yaml: synced 2 ", "2.json: synced 1 ", "3.yml: synced 1 ")
	write(t, pod("e"), dir, ".tmp") // replaced, as editors do
	require.NoError(t, os.Rename(filepath.Join(dir, ".tmp"), filepath.Join(dir, "3.yml")))
	a.is("a1 b c e", "1.yaml: synced 2 ", "2.json: synced 1 ", "3.yml: synced 1 ")
	require.NoError(t, os.Rename(filepath.Join(dir, "3.yml"), filepath.Join(dir, "4.yml"))) // renamed
	a.is("a1 b c e", "1.yaml: synced 2 ", "2.json: synced 1 ", "4.yml: synced 1 ")
	require.NoError(t, os.Remove(filepath.Join(dir, "1.yaml"))) // deleted
	a.is("c e", "2.json: synced 1 ", "4.yml: synced 1 ")
}

func TestSubdirectories(t *testing.T) {
	dir := t.TempDir()
	a := follow(t, dir)
	a.is("")
	write(t, pod("a"), dir, "x", "y", "a.yaml") // made later
	a.is("a", "x/y/a.yaml: synced 1 ")
	writeInPlace(t, pod("b"), dir, "x", "y", "a.yaml")
	a.is("b", "x/y/a.yaml: synced 1 ")

	outside := t.TempDir()
	write(t, pod("c"), outside, "c.yaml")
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "x", "loop")))
	a.is("b c", "link/c.yaml: synced 1 ", "x/y/a.yaml: synced 1 ")
	write(t, pod("d"), outside, "c.yaml")
	a.is("b d", "link/c.yaml: synced 1 ", "x/y/a.yaml: synced 1 ")

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "x")))
	a.is("d", "link/c.yaml: synced 1 ")
	write(t, pod("e"), dir, "x", "e.yaml") // there again
	a.is("d e", "link/c.yaml: synced 1 ", "x/e.yaml: synced 1 ")
	write(t, pod("f"), dir, "x", "e.yaml")
	a.is("d f", "link/c.yaml: synced 1 ", "x/e.yaml: synced 1 ")
}

// A ConfigMap volume is changed by one rename of a link to a directory.
func TestConfigMapVolume(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a"), dir, "..1", "a.yaml")
	require.NoError(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	require.NoError(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	a := follow(t, dir)
	a.is("a", "a.yaml: synced 1 ")
	for i := 2; i < 5; i++ {
		version := fmt.Sprintf("..%d", i)
		write(t, pod(fmt.Sprintf("a%d", i)), dir, version, "a.yaml")
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))))
		a.is(fmt.Sprintf("a%d", i), "a.yaml: synced 1 ")
	}
}

// A broken file keeps what it said last, as a whole, and says where it is broken.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a")+pod("b"), dir, "1.yaml")
	write(t, pod("c"), dir, "2.yaml")
	a := follow(t, dir)
	a.is("a b c", "1.yaml: synced 2 ", "2.yaml: synced 1 ")

	write(t, podV("a", "1")+"---\nkind: [\n", dir, "1.yaml")
	a.is("a b c", "1.yaml: broken 2 document 2 (line 3): yaml: line 4: did not find expected node content", "2.yaml: synced 1 ")
	a.degraded("1.yaml: document 2")
	write(t, podV("c", "1"), dir, "2.yaml") // others go on
	a.is("a b c1", "1.yaml: broken 2 document 2 (line 3): yaml: line 4: did not find expected node content", "2.yaml: synced 1 ")
	write(t, pod("a")+"---\n{apiVersion: v1, kind: Pod}\n", dir, "1.yaml")
	a.is("a b c1", "1.yaml: broken 2 document 2 (line 3): metadata.name: required", "2.yaml: synced 1 ")
	write(t, podV("a", "2"), dir, "1.yaml")
	a.is("a2 c1", "1.yaml: synced 1 ", "2.yaml: synced 1 ")
	a.degraded("")

	write(t, "kind: [", dir, "3.yaml") // never good
	a.is("a2 c1", "1.yaml: synced 1 ", "2.yaml: synced 1 ", "3.yaml: broken 0 document 1 (line 1): yaml: line 1: did not find expected node content")
	require.NoError(t, os.Remove(filepath.Join(dir, "3.yaml")))
	a.degraded("")
}

// An object that is wrong in part is no broken file, but a row with errors.
func TestObjectErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, "{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIPs: [{ip: x}]}}", dir, "1.yaml")
	a := follow(t, dir)
	a.is("a", "1.yaml: synced 1 ")
	e, _, _ := a.tables.Endpoints.Get(a.db.ReadTxn(), tables.EndpointByName(tables.Name{Namespace: "default", Name: "a"}))
	require.Len(t, e.Errors, 1)
}

// Of an object that is there twice, the first by file name counts.
func TestTwice(t *testing.T) {
	dir := t.TempDir()
	write(t, podV("a", "2"), dir, "2.yaml")
	a := follow(t, dir)
	a.is("a2", "2.yaml: synced 1 ")
	write(t, podV("a", "1"), dir, "1.yaml")
	a.is("a1", "1.yaml: synced 1 ", "2.yaml: synced 1 document 1 (line 1): Pod default/a is in 1.yaml already")
	write(t, podV("a", "3")+podV("a", "4"), dir, "1.yaml")
	a.is("a3", "1.yaml: synced 2 document 2 (line 3): Pod default/a is in document 1 (line 1) already",
		"2.yaml: synced 1 document 1 (line 1): Pod default/a is in 1.yaml already")
	require.NoError(t, os.Remove(filepath.Join(dir, "1.yaml")))
	a.is("a2", "2.yaml: synced 1 ")
}

func TestIgnoredKinds(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a")+"---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n---\n{apiVersion: v1, kind: ConfigMap}\n---\n{apiVersion: cilium.io/v2, kind: CiliumNode}\n", dir, "1.yaml")
	follow(t, dir).is("a", "1.yaml: synced 1 ignored: CiliumNode of cilium.io/v2, ConfigMap of v1")
}

// What cannot be read keeps its objects; a directory that is gone as a whole is
// no reason to forget everything.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "manifests")
	write(t, pod("a"), dir, "1.yaml")
	a := follow(t, dir)
	a.is("a", "1.yaml: synced 1 ")
	require.NoError(t, os.Rename(dir, filepath.Join(root, "moved")))
	a.degraded("no such file or directory")
	a.is("a", dir+": broken 1 read "+dir+": stat .: no such file or directory", "1.yaml: synced 1 ")
	write(t, pod("b"), dir, "1.yaml") // another directory in its place
	a.is("b", "1.yaml: synced 1 ")
	a.degraded("")
	write(t, pod("c"), dir, "1.yaml")
	a.is("c", "1.yaml: synced 1 ")

	require.NoError(t, os.Symlink("self.yaml", filepath.Join(dir, "self.yaml"))) // a link to itself
	a.degraded("self.yaml: stat self.yaml: too many levels of symbolic links")
	require.NoError(t, os.Remove(filepath.Join(dir, "1.yaml")))
	require.NoError(t, os.Symlink("1.yaml", filepath.Join(dir, "1.yaml")))
	a.is("c", "1.yaml: broken 1 stat 1.yaml: too many levels of symbolic links", "self.yaml: broken 0 stat self.yaml: too many levels of symbolic links")
}

// All that is noticed together is one transaction, over all tables.
func TestOneTransaction(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a"), dir, "1.yaml")
	a := follow(t, dir)
	a.is("a", "1.yaml: synced 1 ")
	txn := a.db.ReadTxn()
	_, pods := a.tables.Endpoints.AllWatch(txn)
	var many strings.Builder
	for i := range 300 {
		many.WriteString(pod(fmt.Sprintf("p%d", i)))
	}
	write(t, many.String()+"---\n{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n", dir, ".new")
	require.NoError(t, os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "1.yaml")))
	<-pods
	txn = a.db.ReadTxn()
	require.Equal(t, 300, a.tables.Endpoints.NumObjects(txn))
	require.Equal(t, 1, a.tables.Namespaces.NumObjects(txn))
}

// What did not change is not written again, also if its file did.
func TestUnchangedRows(t *testing.T) {
	dir := t.TempDir()
	write(t, pod("a")+pod("b"), dir, "1.yaml")
	a := follow(t, dir)
	a.is("a b", "1.yaml: synced 2 ")
	revision := a.tables.Endpoints.Revision(a.db.ReadTxn())
	write(t, "# a comment\n"+pod("a")+pod("b")+"---\n{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n", dir, "1.yaml")
	a.is("a b", "1.yaml: synced 3 ")
	require.Equal(t, revision, a.tables.Endpoints.Revision(a.db.ReadTxn()))
}

func TestCheckDir(t *testing.T) {
	dir := t.TempDir()
	write(t, "", dir, "file")
	require.NoError(t, checkDir(dir))
	require.EqualError(t, checkDir(filepath.Join(dir, "file")), "flag --manifests: "+filepath.Join(dir, "file")+" is not a directory")
	err := checkDir(filepath.Join(dir, "nosuch"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, filepath.Join(dir, "nosuch"))
}

// The demo is what its comments say: two nodes, three egress policies of which two
// overlap and one is invalid, and a network policy.
func TestDemo(t *testing.T) {
	a := newAgent(t, demo.FS, "")
	txn := a.db.ReadTxn()
	for row := range a.tables.Sources.All(txn) {
		require.Equal(t, "synced", row.State)
		require.Empty(t, row.Error)
	}
	var nodes []string
	for n := range a.tables.Nodes.All(txn) {
		require.True(t, n.Ready && len(n.InternalIPs) == 1 && len(n.PodCIDRs) == 1)
		require.Empty(t, n.Errors)
		nodes = append(nodes, n.Name)
	}
	require.Equal(t, []string{"node-1", "node-2"}, nodes)
	require.Equal(t, 5, a.tables.Endpoints.NumObjects(txn))
	sets := map[tables.LabelSetID]bool{}
	for e := range a.tables.Endpoints.All(txn) {
		require.Empty(t, e.Errors)
		require.Contains(t, nodes, e.Node)
		sets[e.LabelSet.ID] = true
	}
	require.Len(t, sets, 4)
	require.Equal(t, 3, a.tables.EgressPolicies.NumObjects(txn))
	policy := func(name string) *tables.EgressPolicy {
		p, _, found := a.tables.EgressPolicies.Get(txn, tables.EgressPolicyByName(name))
		require.True(t, found)
		return p
	}
	bank, finance, partner := policy("bank"), policy("finance"), policy("partner")
	require.Empty(t, bank.Errors)
	require.Empty(t, finance.Errors)
	require.True(t, bank.Before(finance))
	require.Contains(t, finance.Destinations, bank.Destinations[0])
	require.Len(t, partner.Errors, 2)
	require.Len(t, partner.Destinations, 1)
	require.NotEmpty(t, partner.Gateways[0].Error)
}

func FuzzDecodeFile(f *testing.F) {
	f.Add([]byte(pod("a") + pod("b")))
	kinds := map[string]*objects.Kind{}
	for _, k := range objects.Kinds(objects.EndpointsKubernetes) {
		kinds[kindKey(k.APIVersion(), k.Kind)] = k
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, _, err := decode(kinds, data)
		if err != nil {
			require.Empty(t, entries)
			require.False(t, errors.Is(err, fs.ErrNotExist))
		}
		for _, e := range entries {
			require.NotEmpty(t, e.object.Name.Name)
		}
	})
}
