// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// request returns the answer to a request with some headers.
func (f *fixture) request(path string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	f.mux(false).ServeHTTP(w, r)
	return w
}

const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func TestPage(t *testing.T) {
	f := newFixture(t)
	page := f.request("/", "Accept", browser)
	require.Equal(t, http.StatusOK, page.Code)
	require.Equal(t, "text/html; charset=utf-8", page.Header().Get("Content-Type"))
	require.Equal(t, "Accept", page.Header().Get("Vary"))
	require.Contains(t, page.Body.String(), "<title>Sluice</title>")
	for header, value := range pageHeaders {
		require.Equal(t, value, page.Header().Get(header))
	}

	for _, accept := range []string{"", "*/*", "application/json", "text/html;q=0", "text/html/x"} {
		w := f.request("/", "Accept", accept)
		require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"), accept)
		require.Equal(t, "Accept", w.Header().Get("Vary"), accept)
		require.Contains(t, w.Body.String(), "/tables/fruits\n")
	}
}

// What is asked for again is not sent again.
func TestPageFiles(t *testing.T) {
	f := newFixture(t)
	for name, kind := range map[string]string{
		"index.html": "text/html; charset=utf-8", "style.css": "text/css; charset=utf-8",
		"app.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		w := f.request("/web/" + name)
		require.Equal(t, http.StatusOK, w.Code, name)
		require.Equal(t, kind, w.Header().Get("Content-Type"), name)
		require.NotEmpty(t, w.Header().Get("Content-Security-Policy"), name)
		tag := w.Header().Get("ETag")
		require.NotEmpty(t, tag, name)
		w = f.request("/web/"+name, "If-None-Match", tag)
		require.Equal(t, http.StatusNotModified, w.Code, name)
		require.Empty(t, w.Body.String(), name)
	}
	for _, path := range []string{"/web/none.js", "/web/", "/web/..%2fpage.go", "/web/web%2fapp.js"} {
		require.Equal(t, http.StatusNotFound, f.request(path).Code, path)
	}
}

var (
	elsewhere = regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]`)
	imported  = regexp.MustCompile(`(?m)^import .* from "\./([^"]+)";$`)
	htmlOf    = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`)
)

// maxPage is what a browser loads at most.
const maxPage = 100 << 10

// The page needs nothing from elsewhere, makes no HTML of data, is small, and all of
// it is used.
func TestPageSource(t *testing.T) {
	total := 0
	texts := map[string]string{}
	entries, err := files.ReadDir("web")
	require.NoError(t, err)
	for _, e := range entries {
		data, err := files.ReadFile("web/" + e.Name())
		require.NoError(t, err)
		require.True(t, utf8.Valid(data), e.Name())
		require.Contains(t, contentTypes, path.Ext(e.Name()))
		text := string(data)
		require.Contains(t, text[:200], "SPDX-License-Identifier: Apache-2.0", e.Name())
		require.Less(t, strings.Count(text, "\n"), 400, e.Name())
		require.Empty(t, htmlOf.FindAllString(text, -1), e.Name())
		// the name of SVG, which is never fetched
		text = strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "")
		require.Empty(t, elsewhere.FindAllString(text, -1), e.Name())
		texts[e.Name()] = text
		total += len(data)
	}
	require.Less(t, total, maxPage)

	used := map[string]bool{"index.html": true, "app.js": true, "theme.js": true, "style.css": true, "icon.svg": true}
	for name := range used {
		require.True(t, name == "index.html" || strings.Contains(texts["index.html"], `"web/`+name+`"`), name)
	}
	for name, text := range texts {
		for _, m := range imported.FindAllStringSubmatch(text, -1) {
			require.Contains(t, texts, m[1], "imported by %s", name)
			used[m[1]] = true
		}
	}
	require.Len(t, used, len(texts), "files that nothing loads")
}
