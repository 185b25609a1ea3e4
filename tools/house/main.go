// House measures the production code of a checkout, and checks that it keeps to
// the words of the field.
//
//	go run -C tools/house .            the figures of docs/development.md
//	go run -C tools/house . -words     words that the vocabulary replaces; exit 1 if there are any
//	go run -C tools/house . -words topo/master cmd     the same below some folders
//
// Production code is every .go file that is neither a _test.go nor below test/
// or tools/, and not generated. Functions as struct fields, methods per type and
// interfaces with their implementations are counted by go/types over all
// packages of the root module and of the schedulers'; an implementation is a
// non-interface type of production code.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("house", flag.ContinueOnError)
	root := flags.String("root", filepath.Join("..", ".."), "checkout to measure")
	onlyWords := flags.Bool("words", false, "list the words that the vocabulary replaces, and fail if there are any")
	list := flags.Bool("v", false, "also list interfaces with one implementation, function-typed fields and the largest types")
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := tracked(*root)
	if err != nil {
		return err
	}
	if below := flags.Args(); len(below) > 0 {
		files = slices.DeleteFunc(files, func(file string) bool {
			return !slices.ContainsFunc(below, func(dir string) bool { return strings.HasPrefix(file, dir) })
		})
	}
	findings, err := checkWords(*root, files)
	if err != nil {
		return err
	}
	if *onlyWords {
		for _, f := range findings {
			fmt.Fprintln(out, f)
		}
		if len(findings) > 0 {
			return fmt.Errorf("%d words that tools/house/words.txt replaces", len(findings))
		}
		return nil
	}
	lines, err := countLines(*root, files)
	if err != nil {
		return err
	}
	types, err := countTypes(*root)
	if err != nil {
		return err
	}
	lines.print(out)
	types.print(out, *list)
	production := 0
	for _, f := range findings {
		if isProduction(f.file) {
			production++
		}
	}
	fmt.Fprintf(out, "%-46s %d in production Go, %d in all\n", "words that the vocabulary replaces", production, len(findings))
	return nil
}

// tracked lists the files that git tracks or would add, relative to root.
func tracked(root string) ([]string, error) {
	command := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list files of %s: %w", root, err)
	}
	var files []string
	for _, name := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	return files, nil
}

func isProduction(file string) bool {
	return strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") &&
		!strings.HasPrefix(file, "test/") && !strings.HasPrefix(file, "tools/") &&
		!strings.HasPrefix(filepath.Base(file), "zz_generated")
}
