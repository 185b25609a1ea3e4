// Command site makes a web site of the documentation: every Markdown file of the
// repository's root and of docs/ as a page, with the README as the first, its table of
// documentation beside each, and a search over all sections. It needs no network, and
// neither does the site, which works from a disk too.
//
//	go run -C tools/site . [-root ../..] [-to ../../dist/site]
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", "../..", "the repository")
	to := flag.String("to", "../../dist/site", "the directory that the site is written to")
	flag.Parse()
	pages, err := build(*root, *to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	first := filepath.Join(*to, "index.html")
	if path, err := filepath.Abs(first); err == nil {
		first = path
	}
	fmt.Printf("%d pages: %s\n", pages, first)
}
