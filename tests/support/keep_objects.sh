#!/bin/sh
# keep_objects.sh FOLDER COMPILER ...: run the compiler, unless FOLDER has its object from before.
# Every library that a test builds has the same runtime, which takes 2 s to compile. Nothing is
# optimized, which halves that, unless warnings are errors: some need what the optimizer finds out.
folder=$1
shift
case " $* " in
*" -Werror "*) ;;
*) set -- "$@" -O0 ;;
esac

source=
target=
previous=
for argument; do
    case $previous in
    -c) source=$argument ;;
    -o) target=$argument ;;
    esac
    previous=$argument
done
if [ -z "$source" ] || [ -z "$target" ]; then
    exec "$@"
fi

# All that the object depends on: the compiler, its options, and the source with its headers.
"$@" -E 2>/dev/null || exec "$@"
key=$( (echo "$* " | sed "s| -o $target | |" && cat "$target") | sha256sum | cut -c-32)
kept=$folder/$key.o
if [ -e "$kept" ]; then
    cp "$kept" "$target"
    exit
fi
said=$("$@" 2>&1)
status=$?
# What the compiler says must be said each time, so such an object is not kept.
if [ $status != 0 ] || [ -n "$said" ]; then
    echo "$said" >&2
    exit $status
fi
mkdir -p "$folder"
cp "$target" "$kept.$$" && mv "$kept.$$" "$kept"
