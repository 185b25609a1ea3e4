package main

import (
	"fmt"
	"io"
	"strings"
)

// checkEnv reads the state that the runtime passes, and reports variables that the container has
// in place of those of CDI. CRI-O before its pull request 9292 (June 2025) lets the pod's and the
// image's win.
func checkEnv(stdin io.Reader, variables []string) error {
	c, err := readContainer(stdin)
	if err != nil {
		return err
	}
	var replaced []string
	for _, v := range variables {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not NAME=VALUE", v)
		}
		// Of several of one name the last holds (runc, libcontainer/env.go, prepareEnv).
		got := ""
		for _, e := range c.Config.Process.Env {
			if strings.HasPrefix(e, name+"=") {
				got = e
			}
		}
		if got != v {
			replaced = append(replaced, name)
		}
	}
	if len(replaced) > 0 {
		return fmt.Errorf("the pod or its image sets %s, which the limits of the pod's share need, and this container "+
			"runtime lets it win over CDI: do not set it, or update CRI-O", strings.Join(replaced, ", "))
	}
	return nil
}
