// Command promql reads PromQL expressions from standard input, one a line, and
// fails unless Prometheus' own parser takes all of them. For each it prints the
// metrics that the expression reads. It is a module of its own: heddle does not
// depend on Prometheus.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run parses every line, and stops at the first that is no expression.
func run(in io.Reader, out io.Writer) error {
	p := parser.NewParser(parser.Options{})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		expression, err := p.ParseExpr(lines.Text())
		if err != nil {
			return fmt.Errorf("parse %s: %w", lines.Text(), err)
		}
		var names []string
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if s, ok := node.(*parser.VectorSelector); ok {
				names = append(names, s.Name)
			}
			return nil
		})
		if _, err := fmt.Fprintln(out, strings.Join(names, " ")); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read expressions: %w", err)
	}
	return nil
}
