// Command page bundles the page of topo-master: of the sources in topo/master/httpapi/ui/src one
// script and one style sheet, which a browser gets with the page.
//
//	go run -C tools/page . [directory]
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

const ui = "../../topo/master/httpapi/ui"

func main() {
	to := ui
	if len(os.Args) > 1 {
		to = os.Args[1]
	}
	if err := bundle(to); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func bundle(to string) error {
	src, err := filepath.Abs(filepath.Join(ui, "src"))
	if err != nil {
		return err
	}
	if to, err = filepath.Abs(to); err != nil {
		return err
	}
	result := api.Build(api.BuildOptions{
		EntryPointsAdvanced: []api.EntryPoint{
			{InputPath: "./main.js", OutputPath: "page"}, {InputPath: "./main.css", OutputPath: "page"},
		},
		AbsWorkingDir: src, Outdir: to, Write: true, AllowOverwrite: true,
		Bundle: true, Format: api.FormatIIFE,
		MinifyWhitespace: true, MinifySyntax: true, MinifyIdentifiers: true, LineLimit: 200,
		Banner: map[string]string{
			"js": "// Bundled from src by make generate.", "css": "/* Bundled from src by make generate. */",
		},
	})
	if len(result.Errors) > 0 {
		return fmt.Errorf("%s", strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}), ""))
	}
	return nil
}
