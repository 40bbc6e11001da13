// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-net/sluice/tables/cniconf"
)

// FileName is the name of the configuration that the agent writes. Runtimes take the
// first by name: it sorts before names that begin with a digit or a letter.
const FileName = "0-sluice.conflist"

// oldest is the version since which a plugin is told the result of the one before it.
const oldest = "0.3.0"

// extensions are of files in which runtimes look for a configuration.
var extensions = []string{".conf", ".conflist", ".json"}

// configurations returns the files of a directory that runtimes look at, in their
// order.
func configurations(dir string) ([]string, error) {
	files, err := libcni.ConfFiles(dir, extensions) // sorted, as os.ReadDir sorts
	if err != nil {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	return files, nil
}

// composed is a configuration with the plugin at the end of its list.
type composed struct {
	data             []byte
	network, version string
	others           []string // types of plugins that others have added
}

// entry is the plugin in the list. MadeFrom has the types of the plugins of the CNI's own
// file: what else is in the list was added by others, such as Istio. The plugin itself has
// no use for it.
type entry struct {
	Type string `json:"type"`
	cniconf.Config
	MadeFrom []string `json:"madeFrom"`
}

// compose adds the plugin to what a file says, which is a list or a single plugin, and
// keeps what others have added to the former result. All else stays as it is.
func compose(path string, data, former []byte, plugin cniconf.Config) (*composed, error) {
	list, err := asList(path, data)
	if err != nil {
		return nil, err
	}
	checked, err := libcni.NetworkConfFromBytes(encode(list))
	if err != nil {
		return nil, err
	}
	if ok, err := version.GreaterThanOrEqualTo(checked.CNIVersion, oldest); err != nil || !ok {
		return nil, fmt.Errorf("its cniVersion %q is older than %s: no plugin can be chained to it",
			checked.CNIVersion, oldest)
	}
	if hasPlugin(data) {
		return nil, fmt.Errorf("it has %s in it already: is it made from %s? It has to be made from the CNI's own file", cniconf.Type, FileName)
	}
	if len(checked.Plugins) == 0 {
		return nil, errors.New("it has no plugins in it")
	}
	var plugins []json.RawMessage
	if err := json.Unmarshal(list["plugins"], &plugins); err != nil {
		return nil, fmt.Errorf("parse plugins: %w", err)
	}
	own := entry{Type: cniconf.Type, Config: plugin, MadeFrom: typesOf(plugins)}
	marshaled, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	before, after := addedByOthers(former, own.MadeFrom)
	plugins = slices.Concat(plugins, before, []json.RawMessage{marshaled}, after)
	if list["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, err
	}
	return &composed{
		data: append(out, '\n'), network: checked.Name, version: checked.CNIVersion,
		others: typesOf(slices.Concat(before, after)),
	}, nil
}

// addedByOthers returns the plugins of a former result, before and after Sluice's, that are
// neither of the file that it was made from nor of the one that the next is made from. One
// that does not say what it was made from has only those after Sluice's.
func addedByOthers(former []byte, madeFrom []string) (before, after []json.RawMessage) {
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(former, &list) != nil {
		return nil, nil
	}
	names := typesOf(list.Plugins)
	at := slices.Index(names, cniconf.Type)
	var own entry
	if at < 0 || json.Unmarshal(list.Plugins[at], &own) != nil {
		return nil, nil
	}
	known := slices.Concat([]string{"", cniconf.Type}, madeFrom, own.MadeFrom)
	for i, name := range names {
		switch {
		case slices.Contains(known, name):
		case i > at:
			after = append(after, list.Plugins[i])
		case len(own.MadeFrom) > 0:
			before = append(before, list.Plugins[i])
		}
	}
	return before, after
}

// typesOf returns the type of each plugin, empty if it has none.
func typesOf(plugins []json.RawMessage) (types []string) {
	for _, plugin := range plugins {
		var p struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal(plugin, &p)
		types = append(types, p.Type)
	}
	return types
}

// asList returns the fields of a list, which a single plugin is made to, as runtimes do.
func asList(path string, data []byte) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".conflist" {
		return fields, nil
	}
	if _, found := fields["type"]; !found {
		return nil, errors.New("it has no type: a list is to be in a file named *.conflist")
	}
	plugin, err := json.Marshal([]json.RawMessage{data})
	if err != nil {
		return nil, err
	}
	list := map[string]json.RawMessage{"plugins": plugin}
	for _, field := range []string{"cniVersion", "name"} {
		if value, found := fields[field]; found {
			list[field] = value
		}
	}
	return list, nil
}

func encode(list map[string]json.RawMessage) []byte {
	data, _ := json.Marshal(list) // of raw messages that were parsed
	return data
}

// hasPlugin reports whether the plugin is anywhere in a configuration, such as among
// the delegates of another plugin.
func hasPlugin(data []byte) bool {
	var tree any
	return json.Unmarshal(data, &tree) == nil && mentions(tree)
}

func mentions(tree any) bool {
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			if key == "type" && value == cniconf.Type || mentions(value) {
				return true
			}
		}
	case []any:
		for _, value := range tree {
			if mentions(value) {
				return true
			}
		}
	}
	return false
}

// socketOf returns the socket of the agent that a configuration names: of the one
// that wrote it.
func socketOf(path string) (socket string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var list struct {
		Plugins []struct {
			Type   string `json:"type"`
			Socket string `json:"socket"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return "", fmt.Errorf("parse %s: %w", path, err)
	}
	for _, p := range list.Plugins {
		if p.Type == cniconf.Type {
			socket = p.Socket
		}
	}
	return socket, nil
}

// isOther reports whether a file is not the one that the agent writes.
func isOther(path string) bool { return !strings.HasSuffix(path, string(filepath.Separator)+FileName) }
