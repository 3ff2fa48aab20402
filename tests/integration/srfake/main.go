// The Schema Registry of franz-go's tests (srfake) on the loopback interface.
//
//	srfake -auth "Bearer token"
//
// Prints its URL. The end of standard input ends it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/sr/srfake"
)

func main() {
	auth := flag.String("auth", "", "the Authorization header that every request must have")
	flag.Parse()
	var options []srfake.Option
	if *auth != "" {
		options = append(options, srfake.WithAuth(*auth))
	}
	registry := srfake.New(options...)
	defer registry.Close()
	fmt.Println(registry.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
}
