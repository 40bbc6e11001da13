// SPDX-License-Identifier: Apache-2.0

package overlaykeys

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
	"github.com/sluice-net/sluice/testdata/await"
)

const (
	keyA = "00112233445566778899aabbccddeeff"
	keyB = "FEDCBA98765432100123456789ABCDEF"
)

func TestParseKeys(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "no key in it",
		"# nothing\n\n":                        "no key in it",
		keyA[1:]:                               "line 1 is no key",
		"\n" + keyA + "0a":                     "line 2 is no key",
		"x" + keyA[1:]:                         "line 1 is no key",
		keyA + " " + keyB:                      "line 1 is no key",
		keyA + "\n" + keyA:                     "line 2 has the same key again",
		keyA + "\n" + keyB + "\n" + keyB[:32]:  "more than 2 keys",
		strings.Repeat("0", 32):                "equal bytes",
		keyB + "\n" + strings.Repeat("ab", 16): "line 2: a key of equal bytes",
	} {
		_, err := parseKeys(text)
		require.ErrorContains(t, err, want)
		require.NotContains(t, strings.ToLower(err.Error()), keyA[4:12])
	}
	keys, err := parseKeys("# the one that is sent with\r\n  " + keyA + "\r\n\n" + keyB)
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Equal(t, [2]uint64{0x7766554433221100, 0xffeeddccbbaa9988}, keys[0].Halves)
	require.Equal(t, [2]uint64{0x1032547698badcfe, 0xefcdab8967452301}, keys[1].Halves)
}

// agent follows a file until the test ends.
type agent struct {
	t      *testing.T
	db     *statedb.DB
	table  statedb.RWTable[*tables.OverlayKeys]
	health *cell.SimpleHealth
}

func newAgent(t *testing.T, config Config) *agent {
	t.Helper()
	db := statedb.New()
	require.NoError(t, db.Start())
	t.Cleanup(func() { require.NoError(t, db.Stop()) })
	table, err := tables.NewOverlayKeysTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	initialized := table.RegisterInitializer(wtxn, "file-of-keys")
	wtxn.Commit()
	a := &agent{t: t, db: db, table: table}
	var health cell.Health
	health, a.health = cell.NewSimpleHealth()
	f := &follower{db: db, log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)), config: config,
		table: table, watcher: dirwatch.New(), initialized: initialized}
	ended := make(chan error)
	ctx := t.Context()
	go func() { ended <- f.run(ctx, health) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	_, done := table.Initialized(db.ReadTxn())
	<-done
	return a
}

// is waits for a row, and for what the health says.
func (a *agent) is(row string, level cell.Level, message string) {
	a.t.Helper()
	var err error
	for deadline := time.Now().Add(await.Bound); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err = a.check(row, level, message); err == nil {
			return
		}
	}
	require.NoError(a.t, err)
}

func (a *agent) check(want string, level cell.Level, message string) error {
	row, _, found := a.table.Get(a.db.ReadTxn(), tables.OverlayKeysByIndex(0))
	if !found {
		return errors.New("no row")
	}
	if got := strings.Join(row.TableRow()[:2], " "); got != want {
		return fmt.Errorf("row is %q, want %q", got, want)
	}
	a.health.Lock()
	defer a.health.Unlock()
	text := fmt.Sprint(a.health.Status, " ", a.health.Error)
	if a.health.Level != level || !strings.Contains(text, message) {
		return fmt.Errorf("health is %s: %s, want %s: %s", a.health.Level, text, level, message)
	}
	return nil
}

func number(t *testing.T, text string) string {
	keys, err := parseKeys(text)
	require.NoError(t, err)
	return keys[0].String()
}

// write replaces a file as the kubelet does that of a Secret.
func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o400))
	require.NoError(t, os.Rename(path+".new", path))
}

// The agent follows the file. While it is missing or wrong the keys stay, and the health says what
// is open.
func TestFollow(t *testing.T) {
	a, b := number(t, keyA), number(t, keyB)
	path := filepath.Join(t.TempDir(), "secret", "keys")
	agent := newAgent(t, Config{OverlayKeys: path, OverlayAcceptUnsigned: true})
	agent.is("- accepted", cell.StatusDegraded, "there is no key: a host between the nodes can send")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	write(t, path, keyA)
	agent.is(a+" accepted", cell.StatusOK, "Open: packets without a proof are accepted")
	write(t, path, keyA+"\n"+keyB)
	agent.is(a+", "+b+" accepted", cell.StatusOK, "Open")
	write(t, path, keyB+"\n"+keyA)
	agent.is(b+", "+a+" accepted", cell.StatusOK, "Open")
	write(t, path, keyB+"\n"+keyA[1:])
	agent.is(b+", "+a+" accepted", cell.StatusDegraded, "line 2 is no key")
	require.NoError(t, os.Remove(path))
	agent.is(b+", "+a+" accepted", cell.StatusDegraded, "no such file")
	write(t, path, keyB)
	agent.is(b+" accepted", cell.StatusOK, "Open")
}

func TestWhatIsOpen(t *testing.T) {
	newAgent(t, Config{OverlayAcceptUnsigned: true}).is("- accepted", cell.StatusOK, "Open: there is no key")
	newAgent(t, Config{}).is("- dropped", cell.StatusOK, "no packet from other nodes")
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, keyA)
	a := newAgent(t, Config{OverlayKeys: path})
	a.is(number(t, keyA)+" dropped", cell.StatusOK, "Keys "+number(t, keyA))
	require.ErrorContains(t, Config{OverlayKeys: "keys"}.validate(), "absolute path")
}

// No format in which rows and entries of maps are shown has a key.
func TestKeysAreNotShown(t *testing.T) {
	keys, err := parseKeys(keyA + "\n" + keyB)
	require.NoError(t, err)
	row := &tables.OverlayKeys{Keys: keys}
	entry := &tables.KeysMirror{Value: row.MapValue(), Writing: row.MapValue(), Present: true, Busy: true}
	shown := strings.Join(row.TableRow(), " ") + strings.Join(entry.TableRow(), " ")
	for _, v := range []any{row, entry} {
		data, err := json.Marshal(v)
		require.NoError(t, err)
		shown += string(data)
		data, err = yaml.Marshal(v)
		require.NoError(t, err)
		shown += string(data) + fmt.Sprintf("%v %+v %#v %x %d %s", v, v, v, v, v, v)
	}
	shown += fmt.Sprint(bpf.Lines([]bpf.Entry[bpf.OverlayKeysKey, bpf.OverlayKeysValue]{{Value: row.MapValue()}}))
	require.Contains(t, shown, keys[1].String())
	for _, secret := range []string{"7766554433221100", "ffeeddccbbaa9988", "8613303245451940096", "00112233", "17 34 51"} {
		require.NotContains(t, strings.ToLower(shown), secret)
	}
	require.NotContains(t, shown, fmt.Sprint(keys[0].Halves[0]))
	require.NotContains(t, shown, fmt.Sprint(keys[1].Halves[1]))
}
