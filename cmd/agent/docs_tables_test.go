// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	tableSection = regexp.MustCompile(`(?ms)^### ([a-z-]+)\n(.*?)^\|`)
	fromSentence = regexp.MustCompile(`From\s([^.]*)\.`)
	writtenWith  = regexp.MustCompile("Written with\\s`([a-z-]+)`")
)

// The text about a derived table in docs/tables.md names the tables that it is
// from, which are those of its rule, or another table that the same rule writes.
func TestDocumentedInputs(t *testing.T) {
	documented := map[string][]string{}
	with := map[string]string{}
	for _, section := range tableSection.FindAllStringSubmatch(documents(t)["docs/tables.md"], -1) {
		for _, sentence := range fromSentence.FindAllStringSubmatch(section[2], -1) {
			for _, span := range codeSpan.FindAllString(sentence[1], -1) {
				if name := strings.Trim(span, "`"); !strings.HasPrefix(name, "--") {
					documented[section[1]] = append(documented[section[1]], name)
				}
			}
		}
		if match := writtenWith.FindStringSubmatch(section[2]); match != nil {
			with[section[1]] = match[1]
		}
	}
	for table, other := range with {
		require.Empty(t, documented[table], table)
		require.NotEmpty(t, documented[other], table)
		documented[table] = documented[other]
	}
	p, _ := populate(t)
	operator, _ := populateOperator(t)
	rules := append(p.Rules.All(), operator.Rules.All()...)
	require.Greater(t, len(rules), 20)
	for _, rule := range rules {
		var inputs []string
		for _, input := range rule.Inputs() {
			inputs = append(inputs, input.Table)
		}
		slices.Sort(inputs)
		slices.Sort(documented[rule.Table()])
		require.Equal(t, slices.Compact(inputs), documented[rule.Table()], rule.Table())
	}
}
