// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	gomodule "golang.org/x/mod/module"
)

// certain is the share of a text, in percent, that has to be known licenses.
const certain = 75

// module is what is linked into a binary: a Go module, or Go's own library.
type module struct {
	path, version string
	licenses      []string // SPDX identifiers
	text          []byte   // what has to go with a copy
}

// linked returns the modules of a binary with their licenses, the library first.
func linked(ctx context.Context, info *buildinfo.BuildInfo) ([]module, error) {
	root, err := goEnvironment(ctx, "GOROOT")
	if err != nil {
		return nil, err
	}
	cache, err := goEnvironment(ctx, "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	library := module{path: "std", version: strings.TrimPrefix(info.GoVersion, "go")}
	if err := library.readLicenses(root); err != nil {
		return nil, err
	}
	modules := []module{library}
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		m := module{path: dependency.Path, version: dependency.Version}
		dir, err := cacheDir(cache, m)
		if err != nil {
			return nil, err
		}
		if err := m.readLicenses(dir); err != nil {
			return nil, err
		}
		modules = append(modules, m)
	}
	return modules, nil
}

func goEnvironment(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("ask go for %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// cacheDir is where Go keeps a module.
func cacheDir(cache string, m module) (string, error) {
	path, err := gomodule.EscapePath(m.path)
	if err != nil {
		return "", fmt.Errorf("module %s: %w", m.path, err)
	}
	version, err := gomodule.EscapeVersion(m.version)
	if err != nil {
		return "", fmt.Errorf("module %s: %w", m.path, err)
	}
	return filepath.Join(cache, path+"@"+version), nil
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([.-].*)?$`)

// readLicenses reads the licenses in the directory of a module. It is an error if
// there is none, or one that is not known.
func (m *module) readLicenses(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("find licenses of %s: %w", m.path, err)
	}
	for _, entry := range entries {
		if entry.IsDir() || filepath.Ext(entry.Name()) == ".go" || !licenseName.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return fmt.Errorf("read license of %s: %w", m.path, err)
		}
		m.text = append(append(m.text, text...), '\n')
		if strings.EqualFold(entry.Name()[:min(6, len(entry.Name()))], "notice") {
			continue // no license, but to be passed on with it
		}
		found := licensecheck.Scan(text)
		if found.Percent < certain {
			return fmt.Errorf("license of %s: %s is not known", m.path, entry.Name())
		}
		for _, match := range found.Match {
			m.licenses = append(m.licenses, match.ID)
		}
	}
	if len(m.licenses) == 0 {
		return fmt.Errorf("license of %s: there is none in %s", m.path, dir)
	}
	slices.Sort(m.licenses)
	m.licenses = slices.Compact(m.licenses)
	return nil
}

// licenseTexts joins the licenses of modules, as copies of the binary have to bring them.
func licenseTexts(modules []module) []byte {
	var out bytes.Buffer
	out.WriteString("The binary has these in it, under their licenses.\n")
	for _, m := range modules {
		fmt.Fprintf(&out, "\n%s\n%s %s: %s\n\n", strings.Repeat("-", 80), m.path, m.version, strings.Join(m.licenses, ", "))
		out.Write(m.text)
	}
	return out.Bytes()
}
